"""The scores of additive attention between few queries and few keys, pair by pair.

A step of a search compares some rows of each sentence with its tokens: too few for the tiles of
`qkv.operators.fused`, and too many for a block (rows, tokens, hidden) to stay in the cache.
"""

from __future__ import annotations

from typing import Any

import numba
import torch
from torch import Tensor

from qkv.operators.fused.arithmetic import (
    INNER_OPTIONS,
    TILE_OPTIONS,
    exp,
    finite_divide,
    tile_function,
)
from qkv.operators.fused.cache import kernel_cache
from qkv.operators.sharing import share_out
from qkv.translate.known import known_to_kernels

_SENTENCES = 16  # most that a thread takes at a time
_FAR = 20.0  # beyond, tanh is 1 to the last digit of either type


def can_compare(query: Tensor) -> bool:
    """Whether the kernel knows such numbers and nobody asks for a way back."""
    return known_to_kernels(query) and not torch.is_grad_enabled()


def additive_scores(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """wᵀ tanh(q + k) of all queries (batch, n, h) and keys (batch, s, h), (batch, n, s)."""
    scores = query.new_empty(*query.shape[:-1], key.shape[-2])
    arrays = [each.contiguous().numpy() for each in (query, key, scores)]
    by = weight.detach().to(query.dtype).numpy()

    def compare(start: int, stop: int) -> None:
        _compare(by, *(each[start:stop] for each in arrays))

    share_out(len(query), _SENTENCES, 1, compare)
    return scores


@numba.njit(**INNER_OPTIONS)
def _score(query: Any, key: Any, weight: Any) -> Any:
    """wᵀ tanh(q + k), where tanh x = 1 − 2 / (e^2x + 1)."""
    tile_function()
    real = weight.dtype.type
    one, two, far, total = real(1), real(2), real(_FAR), real(0)
    for i in range(weight.size):
        x = query[i] + key[i]
        x = far if x > far else x
        total += weight[i] * (one - finite_divide(two, exp(two * x) + one))
    return total


def _compare_all(weight: Any, query: Any, key: Any, scores: Any) -> None:
    for b in range(len(query)):
        for i in range(query.shape[1]):
            for j in range(key.shape[1]):
                scores[b, i, j] = _score(query[b, i], key[b, j], weight)


with kernel_cache():
    _compare = numba.njit(cache=True, **TILE_OPTIONS)(_compare_all)
