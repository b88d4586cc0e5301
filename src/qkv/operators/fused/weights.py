"""From logits to weights, one row of a tile at a time."""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np

from qkv.operators.fused.arithmetic import (
    INNER_OPTIONS,
    exp,
    keeps,
    ordered,
    tile_function,
    unordered,
)
from qkv.operators.fused.space import WIDTH

STRIP = WIDTH // 4


@numba.njit(**INNER_OPTIONS)
def raise_tops(logits: Any, rows: int, top: Any, shift: Any, decay: Any) -> None:
    """Raise each row's running maximum, and say by how much what came before it shrinks."""
    tile_function()
    real = logits.dtype.type
    for r in range(rows):
        # LLVM does not vectorise a running maximum of floats unless it may ignore NaN; of
        # integers it does, and four floats by four before that. NaN is passed over here,
        # `exp` will show it.
        highest = ordered(real(-np.inf))
        for j in range(STRIP):
            best = real(-np.inf)
            for strip in range(0, WIDTH, STRIP):
                x = logits[r, strip + j]
                best = x if x > best else best
            place = ordered(best)
            highest = place if place > highest else highest
        best, old = unordered(highest), top[r]
        top[r] = best if best > old else old
        # While no key was allowed the maximum is -inf; any finite shift then gives weights 0.
        shift[r] = top[r] if top[r] > -np.inf else real(0)
        # Most tiles do not raise the maximum. exp(-inf) is 0: there was nothing to keep.
        decay[r] = 1.0 if old == shift[r] else math.exp(np.float64(old) - np.float64(shift[r]))


@numba.njit(**INNER_OPTIONS)
def softmax_weights(raw: Any, rows: int, shift: Any, plain: Any, logits: Any, added: Any) -> None:
    """Turn the logits of each row into weights, relative to e^shift, and sum them."""
    tile_function()
    for r in range(rows):
        total, s = logits.dtype.type(0), shift[r]
        for j in range(WIDTH):
            weight = exp(logits[r, j] - s)
            logits[r, j] = weight
            total += weight
        added[r] = total


@numba.njit(**INNER_OPTIONS)
def proportional_weights(
    raw: Any, rows: int, shift: Any, plain: Any, logits: Any, added: Any
) -> None:
    """The same where the raw scores are weights already; `plain` says that there is no bias."""
    tile_function()
    zero = logits.dtype.type(0)
    for r in range(rows):
        total, s = zero, shift[r]
        for j in range(WIDTH):
            power = logits.dtype.type(1) if plain else exp(logits[r, j] - s)
            weight = raw[r, j] * power if logits[r, j] > -np.inf else zero
            logits[r, j] = weight
            total += weight
        added[r] = total


@numba.njit(**INNER_OPTIONS)
def softmax_logits(raw: Any, rows: int, logits: Any) -> None:
    """Logits, before bias and masks, of raw scores."""
    tile_function()
    for r in range(rows):
        for j in range(WIDTH):
            logits[r, j] = raw[r, j]


@numba.njit(**INNER_OPTIONS)
def proportional_logits(raw: Any, rows: int, logits: Any) -> None:
    """Outside its support a kernel counts as masked; NaN is inside, so that it shows."""
    tile_function()
    zero, masked = raw.dtype.type(0), raw.dtype.type(-np.inf)
    for r in range(rows):
        for j in range(WIDTH):
            logits[r, j] = masked if raw[r, j] <= zero else zero


@numba.njit(**INNER_OPTIONS)
def drop(
    b: int, i: int, rows: int, j0: int, row_key: Any, threshold: Any, scale: Any, out: Any
) -> None:
    """Dropout on the rows of a tile."""
    tile_function()
    zero = out.dtype.type(0)
    for r in range(rows):
        row = row_key[b, i + r]
        for j in range(WIDTH):
            out[r, j] = out[r, j] * scale if keeps(row, j0 + j, threshold) else zero


@numba.njit(**INNER_OPTIONS)
def softmax_slopes(
    raw: Any,
    logits: Any,
    rows: int,
    normal: Any,
    weights: Any,
    bias_slopes: Any,
    slopes: Any,
) -> None:
    """The weights of each row, and the gradients with respect to its biases and its scores.

    `normal` holds each row's maximum and the inverse of its total; both 0 for an empty row.
    On entry `slopes` holds each weight's share: the gradient of its logit divided by the weight.
    """
    tile_function()
    zero, masked = raw.dtype.type(0), raw.dtype.type(-np.inf)
    for r in range(rows):
        shift, inverse = normal[r, 0], normal[r, 1]
        for j in range(WIDTH):
            allowed = logits[r, j] != masked
            weight = exp(logits[r, j] - shift) * inverse
            slope = slopes[r, j] * weight if allowed else zero
            weights[r, j] = weight
            slopes[r, j] = slope
            bias_slopes[r, j] = slope
            raw[r, j] = raw[r, j] if allowed else zero


@numba.njit(**INNER_OPTIONS)
def proportional_slopes(
    raw: Any,
    logits: Any,
    rows: int,
    normal: Any,
    weights: Any,
    bias_slopes: Any,
    slopes: Any,
) -> None:
    tile_function()
    zero, masked = raw.dtype.type(0), raw.dtype.type(-np.inf)
    for r in range(rows):
        shift, inverse = normal[r, 0], normal[r, 1]
        for j in range(WIDTH):
            allowed = logits[r, j] != masked
            power = exp(logits[r, j] - shift) * inverse
            score = raw[r, j] if allowed else zero
            slope = slopes[r, j] * power if allowed else zero
            raw[r, j] = score
            weights[r, j] = score * power
            slopes[r, j] = slope
            bias_slopes[r, j] = slope * score
