"""Scores of the vocabulary turned into their own gradient, row by row, in the cache."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from torch import Tensor

from qkv.operators.fused.arithmetic import (
    INNER_OPTIONS,
    TILE_OPTIONS,
    exp,
    ordered,
    tile_function,
    unordered,
)
from qkv.operators.fused.cache import kernel_cache
from qkv.operators.sharing import share_out

_ROWS = 32  # most that a thread takes at a time


def turn(scores: Tensor, bias: Tensor, wanted: Tensor, smoothing: float) -> float:
    """The loss of scores (n, v), a bias still to be added, where tokens (n,) were wanted.

    The scores become the gradient of that loss with respect to themselves.
    """
    losses = np.empty(len(scores))
    arrays = (scores.numpy(), wanted.numpy(), losses)
    shift = bias.detach().numpy()

    def some(start: int, stop: int) -> None:
        _turn(shift, smoothing, *(each[start:stop] for each in arrays))

    share_out(len(scores), _ROWS, 1, some)
    return float(losses.sum())


@numba.njit(**INNER_OPTIONS)
def _shift(scores: Any, bias: Any) -> Any:
    """Add the bias; the largest score, and the sum of all."""
    tile_function()
    real = scores.dtype.type
    top, total = ordered(real(-np.inf)), real(0)
    for i in range(scores.size):
        score = scores[i] + bias[i]
        scores[i] = score
        total += score
        place = ordered(score)
        top = place if place > top else top
    return unordered(top), total


@numba.njit(**INNER_OPTIONS)
def _exponentiate(scores: Any, top: Any) -> Any:
    """Each score becomes e^(score − top); their sum."""
    tile_function()
    total = scores.dtype.type(0)
    for i in range(scores.size):
        power = exp(scores[i] - top)
        scores[i] = power
        total += power
    return total


@numba.njit(**INNER_OPTIONS)
def _scale(scores: Any, factor: Any, less: Any) -> None:
    tile_function()
    for i in range(scores.size):
        scores[i] = scores[i] * factor - less


def _turn_rows(bias: Any, smoothing: float, scores: Any, wanted: Any, losses: Any) -> None:
    real, vocabulary = scores.dtype.type, scores.shape[1]
    for row in range(len(scores)):
        own, y = scores[row], wanted[row]
        top, all_scores = _shift(own, bias)
        said = np.float64(own[y])
        total = _exponentiate(own, top)
        log_total = np.float64(top) + math.log(total)
        # −Σ t log p, with t the wanted token softened: see loss.py
        of_all = np.float64(all_scores) / vocabulary - log_total
        losses[row] = -(1.0 - smoothing) * (said - log_total) - smoothing * of_all
        _scale(own, real(1.0 / total), real(smoothing / vocabulary))
        own[y] -= real(1.0 - smoothing)


with kernel_cache():
    _turn = numba.njit(cache=True, **TILE_OPTIONS)(_turn_rows)
