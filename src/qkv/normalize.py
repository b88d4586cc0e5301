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
    if allowed is not None:
        log_scores = torch.where(allowed, log_scores, -torch.inf)
    if not may_be_empty:
        return Weights(torch.softmax(log_scores, dim=-1), torch.logsumexp(log_scores, dim=-1))
    empty = (log_scores == -torch.inf).all(dim=-1, keepdim=True)
    # Filled before the softmax and emptied after it, so that no NaN is made on either way.
    filled = log_scores.masked_fill(empty, 0.0)
    return Weights(
        torch.softmax(filled, dim=-1).masked_fill(empty, 0.0),
        torch.logsumexp(filled, dim=-1).masked_fill(empty.squeeze(-1), -torch.inf),
    )
