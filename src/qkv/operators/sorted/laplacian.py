"""The Laplacian over sorted keys: one scan from either side.

With kᵢ ≤ x, exp(−(x − kⱼ)/h) = exp(−(x − kᵢ)/h) · exp(−(kᵢ − kⱼ)/h), so the sum over all keys to
the left of x is that up to the last of them, faded by its distance. Nothing is ever subtracted.

A file of kernels calls no function of another file: Numba would not see that one change.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from qkv.operators.fused.cache import kernel_cache

_OPTIONS: dict[str, Any] = {"nogil": True, "error_model": "numpy", "fastmath": {"contract"}}


def _prepare(keys: Any, weights: Any, values: Any, h: float) -> Any:
    """Sums (n, 1 + columns) over the keys up to each from the left, and from the right."""
    n, columns = values.shape
    left, right = np.empty((n, 1 + columns)), np.empty((n, 1 + columns))
    for i in range(n):
        j = n - 1 - i
        fade_left = math.exp(-(keys[i] - keys[i - 1]) / h) if i > 0 else 0.0
        fade_right = math.exp(-(keys[j + 1] - keys[j]) / h) if i > 0 else 0.0
        for c in range(1 + columns):
            own_left = weights[i] * (values[i, c - 1] if c > 0 else 1.0)
            own_right = weights[j] * (values[j, c - 1] if c > 0 else 1.0)
            left[i, c] = own_left + (left[i - 1, c] * fade_left if i > 0 else 0.0)
            right[j, c] = own_right + (right[j + 1, c] * fade_right if i > 0 else 0.0)
    return left, right


def _pool(
    queries: Any,
    start: int,
    stop: int,
    keys: Any,
    weights: Any,
    values: Any,
    h: float,
    others: bool,
    prepared: Any,
    answer: Any,
    log_total: Any,
) -> None:
    """Answers to sorted queries from `start` to `stop`; with `others`, i leaves a copy of i out."""
    left, right = prepared
    n, columns = values.shape
    place = np.searchsorted(keys, queries[start], side="right")
    for i in range(start, stop):
        x = queries[i]
        while place < n and keys[place] <= x:
            place += 1
        last, after = (i - 1, i + 1) if others else (place - 1, place)
        to_left = (x - keys[last]) / h if last >= 0 else np.inf
        to_right = (keys[after] - x) / h if after < n else np.inf
        rest = max(weights[i] - 1.0, 0.0) if others else 0.0  # what is left of the key itself
        near = 0.0 if rest > 0.0 else min(to_left, to_right)
        if near == np.inf:
            log_total[i] = -np.inf
            answer[i] = 0.0
            continue
        fade_left = math.exp(near - to_left) if last >= 0 else 0.0
        fade_right = math.exp(near - to_right) if after < n else 0.0
        last, after = max(last, 0), min(after, n - 1)  # where there is none it fades to 0
        total = left[last, 0] * fade_left + right[after, 0] * fade_right + rest
        log_total[i] = math.log(total) - near
        for c in range(columns):
            found = left[last, 1 + c] * fade_left + right[after, 1 + c] * fade_right
            if rest > 0.0:
                found += rest * values[i, c]
            answer[i, c] = found / total


with kernel_cache():
    prepare = numba.njit(cache=True, **_OPTIONS)(_prepare)
    pool = numba.njit(cache=True, **_OPTIONS)(_pool)
