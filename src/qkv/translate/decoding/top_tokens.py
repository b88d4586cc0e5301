"""The likeliest tokens of every row, found in one pass over its scores.

The work after the output layer's product is memory-bound: bias, softmax and top-k would each read
and write the scores of the full vocabulary. Here all three are computed for a row while it is in
the cache.

A row is cut into strips that are stacked, and the largest score of each column is
found first, by whole vectors. The best scores of the row lie in the columns whose largest are the
best, so the search looks at few of them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from qkv.jit import device, kernel
from qkv.jit.builtins import exp, noinline
from qkv.jit.signature import Double1, Double2, Double3, Int1, Int2, Int3, PerThread, Real1, Real2
from qkv.translate.data.vocabulary import BEGIN, END, PAD

_SCORES = 2**22  # held at once
_AT_ONCE = 2**13  # of them, what a thread takes at a time, and at least a row
_STRIPS = 16  # scores in a column
_PART = 1024  # scores that are summed up in their own type


class TopTokens(NamedTuple):
    """Of each row, its likeliest tokens, the best first, and how likely it is to end.

    PAD and BEGIN never follow a token, so they are never among them.
    """

    log_p: Double3  # (..., count); -inf where there are no more tokens
    tokens: Int3  # (..., count)
    end: Double2  # (...)


class Scratch(NamedTuple):
    """What a thread knows of a row."""

    tops: Real1  # the largest score of each column
    best_tops: Real1  # and the best of these,
    columns: Int1  # which are of these columns


class TopTokenFinder:
    """Finds the `count` likeliest tokens after features, by the softmax of an output layer.

    Memory for the scores is taken once, for all steps of a search.
    """

    def __init__(self, output: nn.Linear, rows: int, count: int) -> None:
        vocabulary = len(output.weight)
        self.output, self.count = output, count
        self.bias = _supported(output.bias)
        size = min(rows, max(1, _SCORES // vocabulary))
        self.room = output.weight.new_empty(size, vocabulary)

    def __call__(self, features: Tensor) -> TopTokens:
        """After features (…, r)."""
        shape, flat, size = features.shape[:-1], features.flatten(0, -2), len(self.room)
        log_p, tokens = np.empty((*shape, self.count)), np.empty((*shape, self.count), np.int64)
        end = np.empty(shape)
        outputs = log_p.reshape(-1, self.count), tokens.reshape(-1, self.count), end.reshape(-1)
        # Two columns more: PAD and BEGIN, which do not count, may be the largest of theirs.
        vocabulary, best = len(self.bias), (self.count + 2,)
        scratch = Scratch((-(-vocabulary // _STRIPS),), best, best)
        for start in range(0, len(flat), size):
            part = flat[start : start + size]
            scores = torch.mm(part, self.output.weight.mT, out=self.room[: len(part)])
            _search(
                _supported(scores),
                self.bias,
                *(each[start : start + size] for each in outputs),
                count=len(part),
                grain=max(1, _AT_ONCE // vocabulary),
                scratch=scratch,
            )
        return TopTokens(log_p, tokens, end)


def _supported(tensor: Tensor) -> Tensor:
    """The tensor in a type and layout that kernels support, without a copy where possible."""
    dtype = torch.promote_types(tensor.dtype, torch.float32)
    return tensor.detach().to("cpu", dtype).contiguous()


@device
def _shift(scores: Any, bias: Any, tops: Any) -> None:
    """Add the bias, and find the largest score of each column."""
    noinline()
    for i in range(tops.size):
        scores[i] += bias[i]
        tops[i] = scores[i]
    for start in range(tops.size, scores.size, tops.size):
        strip, shift = scores[start : start + tops.size], bias[start : start + tops.size]
        for i in range(strip.size):
            strip[i] += shift[i]
            tops[i] = strip[i] if strip[i] > tops[i] else tops[i]


@device
def _sum(scores: Any, largest: Any) -> Any:
    """Σ exp(score − largest)."""
    noinline()
    total = scores.dtype.type(0.0)
    for i in range(scores.size):
        total += exp(scores[i] - largest)
    return total


@device
def _insert(score: Any, token: Any, best: Any, tokens: Any) -> None:
    """Insert a score among the best, which are sorted, and drop the last of them."""
    place = best.size - 1
    while place > 0 and score > best[place - 1]:
        best[place], tokens[place] = best[place - 1], tokens[place - 1]
        place -= 1
    best[place], tokens[place] = score, token


@kernel
def _search(
    start: int,
    stop: int,
    scores: Real2,
    bias: Real1,
    log_p: Double2,
    tokens: Int2,
    end: Double1,
    scratch: PerThread[Scratch],
) -> None:
    """Find the likeliest tokens of each row; its scores are used up."""
    count, vocabulary = log_p.shape[1], scores.shape[1]
    tops, best_tops, columns = scratch.tops, scratch.best_tops, scratch.columns
    for row in range(start, stop):
        _shift(scores[row], bias, tops)
        best_tops[:] = -np.inf
        for column in range(tops.size):
            if tops[column] > best_tops[count + 1]:
                _insert(tops[column], column, best_tops, columns)
        largest, total = best_tops[0], 0.0
        for first in range(0, vocabulary, _PART):
            total += _sum(scores[row, first : first + _PART], largest)
        log_total = math.log(total)
        end[row] = np.float64(scores[row, END]) - largest - log_total
        best, chosen = log_p[row], tokens[row]
        best[:], chosen[:] = -np.inf, PAD
        for i in range(count + 2):
            if not best_tops[i] > best[count - 1]:
                break
            for token in range(columns[i], vocabulary, tops.size):
                if scores[row, token] > best[count - 1] and token != PAD and token != BEGIN:
                    _insert(scores[row, token], token, best, chosen)
        for i in range(count):
            best[i] = best[i] - largest - log_total
