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


def turn(scores: Tensor, bias: Tensor, wanted: Tensor, smoothing: float) -> float:
    """The loss of scores (n, v), a bias still to be added, where tokens (n,) were wanted.

    The scores become the gradient of that loss with respect to themselves.
    """
    losses = np.empty(len(scores))
    _turn(
        scores,
        bias.detach().contiguous(),
        wanted.contiguous(),
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
    wanted: Int1,
    smoothing: float,
    losses: Double1,
) -> None:
    """Scores count from the largest of a row: sums of what they have in common lose digits."""
    real, vocabulary = scores.dtype.type, scores.shape[1]
    for row in range(start, stop):
        own, y = scores[row], wanted[row]
        top = _shift(own, bias)
        said = np.float64(own[y]) - top
        total, below = 0.0, 0.0
        for i in range(0, vocabulary, _PART):
            powers, moved = _exponentiate(own[i : i + _PART], top)
            total += powers
            below += moved
        log_total = math.log(total)
        # −Σ t log p, with t the wanted token softened: see loss.py
        of_all = below / vocabulary - log_total
        losses[row] = -(1.0 - smoothing) * (said - log_total) - smoothing * of_all
        _scale(own, real(1.0 / total), real(smoothing / vocabulary))
        own[y] -= real(1.0 - smoothing)
