"""Scores to weights: the one place that rules on empty rows.

Softmax weights (Eq. 3) and weights proportional to a kernel (Eq. 4) are both the softmax of
``Similarity.log_score``; softmax is always shifted by the largest *allowed* score. A row in which
nothing may be attended to, or every kernel is 0, has weights 0 and a total of 0 (log −inf).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Weights(NamedTuple):
    weights: Tensor  # (..., n, m)
    log_total: Tensor  # (..., n): log of the sum of the unnormalised weights


def normalize(log_scores: Tensor, allowed: Tensor | None, may_be_empty: bool) -> Weights:
    """Weights that are ≥ 0 and sum to 1 over the allowed keys of each row, or are all 0.

    Rows are searched for emptiness only where `may_be_empty` says that there can be such.
    """
    if log_scores.shape[-1] == 0:
        return Weights(log_scores, log_scores.new_full(log_scores.shape[:-1], -torch.inf))
    filled, empty = _filled(log_scores, allowed, may_be_empty)
    log_total = torch.logsumexp(filled, dim=-1)
    if empty is not None:
        log_total = log_total.masked_fill(empty.squeeze(-1), -torch.inf)
    return Weights(_softmax(filled, empty), log_total)


def softmax(log_scores: Tensor, allowed: Tensor | None, may_be_empty: bool) -> Tensor:
    """The weights of :func:`normalize` alone; the total would cost as much again."""
    if log_scores.shape[-1] == 0:
        return log_scores
    return _softmax(*_filled(log_scores, allowed, may_be_empty))


def _filled(
    log_scores: Tensor, allowed: Tensor | None, may_be_empty: bool
) -> tuple[Tensor, Tensor | None]:
    """The scores with −inf where not allowed and 0 in empty rows, and which rows are empty."""
    if allowed is not None:
        log_scores = torch.where(allowed, log_scores, -torch.inf)
    if not may_be_empty:
        return log_scores, None
    empty = (log_scores == -torch.inf).all(dim=-1, keepdim=True)
    # Filled before the softmax and emptied after it, so that no NaN is made on either way.
    return log_scores.masked_fill(empty, 0.0), empty


def _softmax(filled: Tensor, empty: Tensor | None) -> Tensor:
    weights = torch.softmax(filled, dim=-1)
    return weights if empty is None else weights.masked_fill(empty, 0.0)
