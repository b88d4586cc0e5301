"""The Laplacian over sorted keys: one scan from either side.

With kᵢ ≤ x, exp(−(x − kⱼ)/h) = exp(−(x − kᵢ)/h) · exp(−(kᵢ − kⱼ)/h), so the sum over all keys to
the left of x is that up to the last of them, faded by its distance. Nothing is ever subtracted.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from qkv.jit import kernel_in_order
from qkv.jit.builtins import exp
from qkv.jit.signature import Double1, Double3, PerThread
from qkv.operators.sorted.operands import Answers, KeyArrays, count_up_to, write_answer


class Scratch(NamedTuple):
    """A thread's buffers."""

    sums: Double1  # (1 + columns,)


@kernel_in_order
def scan(start: int, stop: int, keys: KeyArrays, h: float, scans: Double3) -> None:
    """Sums (2, m, 1 + columns) over the keys up to each: from the left, and from the right."""
    m, columns = keys.value.shape
    for side in range(start, stop):
        step = 1 if side == 0 else -1
        i = 0 if side == 0 else m - 1
        for c in range(1 + columns):
            scans[side, i, c] = keys.weight[i] * (keys.value[i, c - 1] if c > 0 else 1.0)
        for _ in range(m - 1):
            i += step
            fade = exp(-abs(keys.key[i] - keys.key[i - step]) / h)
            for c in range(1 + columns):
                term = keys.weight[i] * (keys.value[i, c - 1] if c > 0 else 1.0)
                scans[side, i, c] = term + scans[side, i - step, c] * fade


@kernel_in_order
def pool(
    start: int, stop: int, query: Double1, itself: int, keys: KeyArrays, h: float,
    scans: Double3, answers: Answers, scratch: PerThread[Scratch],
) -> None:  # fmt: skip
    """Answer sorted queries; if `itself` ≥ 0, query i leaves out a copy of key `itself` + i."""
    m, columns = keys.value.shape
    sums = scratch.sums
    place = count_up_to(keys.key, query[start])
    for i in range(start, stop):
        x, own_key = query[i], itself + i
        while place < m and keys.key[place] <= x:
            place += 1
        last, after, rest = place - 1, place, 0.0
        if itself >= 0:  # `rest` is what is left of the key itself
            last, after, rest = own_key - 1, own_key + 1, max(keys.weight[own_key] - 1.0, 0.0)
        to_left = (x - keys.key[last]) / h if last >= 0 else np.inf
        to_right = (keys.key[after] - x) / h if after < m else np.inf
        near = 0.0 if rest > 0.0 else min(to_left, to_right)
        fade_left = exp(near - to_left) if last >= 0 else 0.0
        fade_right = exp(near - to_right) if after < m else 0.0
        last, after = max(last, 0), min(after, m - 1)  # where there is none it fades to 0
        for c in range(1 + columns):
            sums[c] = scans[0, last, c] * fade_left + scans[1, after, c] * fade_right
        if rest > 0.0:
            sums[0] += rest
            for c in range(columns):
                sums[1 + c] += rest * keys.value[own_key, c]
        write_answer(i, sums, -near, keys, answers)
