"""The likeliest tokens of every row, found in one visit to its scores.

What follows the output layer's product is bound by memory: bias, softmax and the search for the
best would each read and write the scores of the whole vocabulary. Here all three are done to a row
while it lies in the cache.

A row is cut into strips that are laid over each other, and the largest score of each column is
found first, by whole vectors. The best scores of the row lie in the columns whose largest are the
best, so the search looks at few of them.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, NamedTuple

import numba
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from qkv.operators.fused.arithmetic import (
    INNER_OPTIONS,
    TILE_OPTIONS,
    exp,
    tile_function,
)
from qkv.operators.fused.cache import kernel_cache
from qkv.operators.sharing import share_out
from qkv.translate.vocabulary import BEGIN, END, PAD

Numbers = npt.NDArray[np.float64]

_SCORES = 2**22  # held at once
_ROWS = 64  # most that a thread takes at a time
_STRIPS = 16  # scores in a column


class Likely(NamedTuple):
    """Of each row, its likeliest tokens, the best first, and how likely it is to end.

    No sentence goes on with padding or with its beginning, so those are never among them.
    """

    log_p: Numbers  # (..., count); -inf where there are no more tokens
    tokens: npt.NDArray[np.int64]  # (..., count)
    end: Numbers  # (...)


class Likeliest:
    """Finds the `count` likeliest tokens after features, by the softmax of an output layer.

    Memory for the scores is taken once, for all steps of a search.
    """

    def __init__(self, output: nn.Linear, rows: int, count: int) -> None:
        vocabulary = len(output.weight)
        self.output, self.count = output, count
        self.bias = _numbers(output.bias)
        size = min(rows, max(1, _SCORES // vocabulary))
        self.room = output.weight.new_empty(size, vocabulary)

    def __call__(self, features: Tensor) -> Likely:
        """After features (…, r)."""
        shape, flat, size = features.shape[:-1], features.flatten(0, -2), len(self.room)
        log_p, tokens = np.empty((*shape, self.count)), np.empty((*shape, self.count), np.int64)
        end = np.empty(shape)
        found = log_p.reshape(-1, self.count), tokens.reshape(-1, self.count), end.reshape(-1)
        for start in range(0, len(flat), size):
            part = flat[start : start + size]
            scores = torch.mm(part, self.output.weight.mT, out=self.room[: len(part)])
            of_rows = (_numbers(scores), *(each[start : start + size] for each in found))
            share_out(len(part), _ROWS, 1, partial(self._search, of_rows))
        return Likely(log_p, tokens, end)

    def _search(self, of_rows: tuple[Any, ...], start: int, stop: int) -> None:
        _search(self.bias, *(each[start:stop] for each in of_rows))


def _numbers(tensor: Tensor) -> Any:
    """As an array of a type that kernels know; of the same memory where they do."""
    wide = torch.promote_types(tensor.dtype, torch.float32)
    return tensor.detach().to("cpu", wide).numpy()


@numba.njit(**INNER_OPTIONS)
def _shift(scores: Any, bias: Any, tops: Any) -> None:
    """Add the bias, and find the largest score of each column."""
    tile_function()
    for i in range(tops.size):
        scores[i] += bias[i]
        tops[i] = scores[i]
    for start in range(tops.size, scores.size, tops.size):
        strip, shift = scores[start : start + tops.size], bias[start : start + tops.size]
        for i in range(strip.size):
            strip[i] += shift[i]
            tops[i] = strip[i] if strip[i] > tops[i] else tops[i]


@numba.njit(**INNER_OPTIONS)
def _sum(scores: Any, largest: Any) -> Any:
    """Σ exp(score − largest)."""
    tile_function()
    total = scores.dtype.type(0.0)
    for i in range(scores.size):
        total += exp(scores[i] - largest)
    return total


@numba.njit(**INNER_OPTIONS)
def _insert(score: Any, token: Any, best: Any, tokens: Any) -> None:
    """Put a score in its place among the best, which are sorted, and drop the last of them."""
    place = best.size - 1
    while place > 0 and score > best[place - 1]:
        best[place], tokens[place] = best[place - 1], tokens[place - 1]
        place -= 1
    best[place], tokens[place] = score, token


def _search_rows(bias: Any, scores: Any, log_p: Any, tokens: Any, end: Any) -> None:
    """Find the likeliest tokens of each row; its scores are used up."""
    count, vocabulary = log_p.shape[1], scores.shape[1]
    tops = np.empty(-(-vocabulary // _STRIPS), scores.dtype)
    # Two columns more: PAD and BEGIN, which do not count, may be all that is good about theirs.
    best_tops, columns = np.empty(count + 2, scores.dtype), np.empty(count + 2, np.int64)
    for row in range(len(scores)):
        _shift(scores[row], bias, tops)
        best_tops[:] = -np.inf
        for column in range(tops.size):
            if tops[column] > best_tops[count + 1]:
                _insert(tops[column], column, best_tops, columns)
        largest = best_tops[0]
        log_total = largest + math.log(_sum(scores[row], largest))
        end[row] = scores[row, END] - log_total
        best, chosen = log_p[row], tokens[row]
        best[:], chosen[:] = -np.inf, PAD
        for i in range(count + 2):
            if not best_tops[i] > best[count - 1]:
                break
            for token in range(columns[i], vocabulary, tops.size):
                if scores[row, token] > best[count - 1] and token != PAD and token != BEGIN:
                    _insert(scores[row, token], token, best, chosen)
        best -= log_total


with kernel_cache():
    _search = numba.njit(cache=True, **TILE_OPTIONS)(_search_rows)
