"""The scores of additive attention between few queries and few keys, pair by pair.

A step of a search compares some rows of each sentence with its tokens: too few for the tiles of
`qkv.operators.fused`, and too many for a block (rows, tokens, hidden) to stay in the cache.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qkv.jit import device, kernel
from qkv.jit.arguments import has_kernels
from qkv.jit.builtins import exp, finite_divide, noinline
from qkv.jit.signature import Real1, Real3

_AT_ONCE = 2**12  # numbers whose tanh a thread takes at a time, and at least a sentence's
_FAR = 20.0  # beyond, tanh is 1 to the last digit of either type


def can_compare(query: Tensor) -> bool:
    """Whether the kernel supports such tensors and no gradient is needed."""
    return has_kernels(query) and not torch.is_grad_enabled()


def additive_scores(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """wᵀ tanh(q + k) of all queries (batch, n, h) and keys (batch, s, h), (batch, n, s)."""
    scores = query.new_empty(*query.shape[:-1], key.shape[-2])
    by = weight.detach().to(query.dtype).contiguous()
    grain = max(1, _AT_ONCE * len(query) // max(1, scores.numel() * by.numel()))
    _compare(query.contiguous(), key.contiguous(), by, scores, count=len(query), grain=grain)
    return scores


@device
def _score(query: Any, key: Any, weight: Any) -> Any:
    """wᵀ tanh(q + k), where tanh x = 1 − 2 / (e^2x + 1)."""
    noinline()
    real = weight.dtype.type
    one, two, far, total = real(1), real(2), real(_FAR), real(0)
    for i in range(weight.size):
        x = query[i] + key[i]
        x = far if x > far else x
        total += weight[i] * (one - finite_divide(two, exp(two * x) + one))
    return total


@kernel
def _compare(start: int, stop: int, query: Real3, key: Real3, weight: Real1, scores: Real3) -> None:
    for b in range(start, stop):
        for i in range(query.shape[1]):
            for j in range(key.shape[1]):
                scores[b, i, j] = _score(query[b, i], key[b, j], weight)
