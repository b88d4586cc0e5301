"""Additive scores pair by pair, in compiled code, where nobody asks for gradients.

The formula builds the block (queries, keys, hidden); the tiles of `qkv.operators.fused` are made
for more queries than a step of a decoder has. Here nothing is held beyond the scores.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from qkv.jit import UnavailableError, device, kernel
from qkv.jit.arguments import has_kernels
from qkv.jit.builtins import exp, finite_divide, noinline
from qkv.jit.kernels import warn_once
from qkv.jit.signature import Real1, Real3
from qkv.tracing import is_eager

_AT_ONCE = 2**14  # numbers whose tanh a thread takes at a time
_KEYS = 64  # a unit of work is a query and so many keys
# Beyond, tanh is 1 to the last digit of either type.
FAR32, FAR64 = 10.0, 20.0


def additive_scores(query: Tensor, key: Tensor, weight: Tensor) -> Tensor | None:
    """wᵀ tanh(q + k) of all queries (…, n, h) and keys (…, m, h), (…, n, m); None where only the
    formula can tell."""
    if torch.is_grad_enabled() and (
        query.requires_grad or key.requires_grad or weight.requires_grad
    ):
        return None
    if not (has_kernels(query) and query.dtype == key.dtype and is_eager(query, key, weight)):
        return None
    batch = query.shape[:-2]
    if key.shape[:-2] != batch:
        batch = torch.broadcast_shapes(batch, key.shape[:-2])
        query, key = query.expand(*batch, -1, -1), key.expand(*batch, -1, -1)
    n, (m, hidden) = query.shape[-2], key.shape[-2:]
    scores = query.new_empty(*batch, n, m)
    rows = math.prod(batch) * n
    if rows * m * hidden == 0:
        return scores.zero_()
    weight = weight.detach().to(query.dtype).contiguous()
    try:
        _compare(
            query.contiguous(), key.contiguous(), weight, scores,
            count=rows * -(-m // _KEYS), grain=max(1, _AT_ONCE // (min(m, _KEYS) * hidden)),
        )  # fmt: skip
    except UnavailableError as reason:
        warn_once(str(reason))
        return None
    return scores


@device
def power(query: Any, key: Any, far: Any) -> Any:
    """e^2x + 1 of x = q + k, up to `far`: four such numbers may be multiplied."""
    x = query + key
    x = far if x > far else x
    return exp(x + x) + type(far)(1)


@device
def four_scores(query: Any, key: Any, first: int, weight: Any, far: Any, out: Any) -> None:
    """wᵀ tanh(q + k) of four keys, where tanh x = 1 − 2 / (e^2x + 1): they share a division."""
    noinline()
    real = weight.dtype.type
    s0 = s1 = s2 = s3 = total = real(0)
    for c in range(weight.size):
        q = query[c]
        x0, x1 = power(q, key[first, c], far), power(q, key[first + 1, c], far)
        x2, x3 = power(q, key[first + 2, c], far), power(q, key[first + 3, c], far)
        left, right = x0 * x1, x2 * x3
        inverse = finite_divide(weight[c], left * right)
        left, right = left * inverse, right * inverse
        s0 += x1 * right
        s1 += x0 * right
        s2 += x3 * left
        s3 += x2 * left
        total += weight[c]
    out[first] = total - real(2) * s0
    out[first + 1] = total - real(2) * s1
    out[first + 2] = total - real(2) * s2
    out[first + 3] = total - real(2) * s3


@device
def one_score(query: Any, key: Any, weight: Any, far: Any) -> Any:
    noinline()
    real = weight.dtype.type
    total = real(0)
    for c in range(weight.size):
        total += weight[c] * (real(1) - finite_divide(real(2), power(query[c], key[c], far)))
    return total


@kernel
def _compare(start: int, stop: int, query: Real3, key: Real3, weight: Real1, scores: Real3) -> None:
    n, m = query.shape[1], key.shape[1]
    real = scores.dtype.type
    far = real(FAR32) if scores.itemsize == 4 else real(FAR64)
    blocks = (m + _KEYS - 1) // _KEYS
    for unit in range(start, stop):
        row, first = unit // blocks, unit % blocks * _KEYS
        b, i, last = row // n, row % n, min(first + _KEYS, m)
        fours = last - (last - first) % 4
        for j in range(first, fours, 4):
            four_scores(query[b, i], key[b], j, weight, far, scores[b, i])
        for j in range(fours, last):
            scores[b, i, j] = one_score(query[b, i], key[b, j], weight, far)
