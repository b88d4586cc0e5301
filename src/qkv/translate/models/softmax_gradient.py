"""Scores of the vocabulary turned into their own gradient, row by row, in the cache."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from torch import Tensor

from qkv.jit import device, kernel
from qkv.jit.builtins import exp, noinline, ordered, unordered
from qkv.jit.signature import Double1, Int1, Real1, Real2

_AT_ONCE = 2**13  # scores that a thread takes at a time, and at least a row
_PART = 1024  # scores that are summed up in their own type


def turn(scores: Tensor, bias: Tensor, labels: Tensor, smoothing: float) -> float:
    """The loss of scores (n, v), a bias still to be added, for labels (n,).

    The scores become the gradient of that loss with respect to themselves.
    """
    losses = np.empty(len(scores))
    _turn(
        scores,
        bias.detach().contiguous(),
        labels.contiguous(),
        smoothing,
        losses,
        count=len(scores),
        grain=max(1, _AT_ONCE // scores.shape[1]),
    )
    return float(losses.sum())


@device
def _shift(scores: Any, bias: Any) -> Any:
    """Add the bias; the largest score."""
    noinline()
    top = ordered(scores.dtype.type(-np.inf))
    for i in range(scores.size):
        score = scores[i] + bias[i]
        scores[i] = score
        place = ordered(score)
        top = place if place > top else top
    return unordered(top)


@device
def _exponentiate(scores: Any, top: Any) -> Any:
    """Each score becomes e^(score − top); the sum of these, and that of all score − top."""
    noinline()
    total = below = scores.dtype.type(0)
    for i in range(scores.size):
        moved = scores[i] - top
        power = exp(moved)
        scores[i] = power
        total += power
        below += moved
    return total, below


@device
def _scale(scores: Any, factor: Any, less: Any) -> None:
    noinline()
    for i in range(scores.size):
        scores[i] = scores[i] * factor - less


@kernel
def _turn(
    start: int,
    stop: int,
    scores: Real2,
    bias: Real1,
    labels: Int1,
    smoothing: float,
    losses: Double1,
) -> None:
    """Scores are taken relative to the largest of a row: a common offset would cost digits."""
    real, vocabulary = scores.dtype.type, scores.shape[1]
    for row in range(start, stop):
        row_scores, y = scores[row], labels[row]
        top = _shift(row_scores, bias)
        label_score = np.float64(row_scores[y]) - top
        total, below = 0.0, 0.0
        for i in range(0, vocabulary, _PART):
            powers, moved = _exponentiate(row_scores[i : i + _PART], top)
            total += powers
            below += moved
        log_total = math.log(total)
        # −Σ t log p, with t the smoothed label: see loss.py
        of_all = below / vocabulary - log_total
        losses[row] = -(1.0 - smoothing) * (label_score - log_total) - smoothing * of_all
        _scale(row_scores, real(1.0 / total), real(smoothing / vocabulary))
        row_scores[y] -= real(1.0 - smoothing)
