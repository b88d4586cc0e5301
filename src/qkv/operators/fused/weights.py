"""From logits to weights, one row of a tile at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qkv.jit import device
from qkv.jit.builtins import exp, noinline, ordered, unordered


@device
def update_running_max(logits: Any, rows: int, top: Any, shift: Any, decay: Any) -> None:
    """Raise each row's running maximum, and say by how much what came before it shrinks."""
    noinline()
    real, width = logits.dtype.type, logits.shape[1]
    strip = width // 4
    for r in range(rows):
        line = logits[r]
        first, second = line[:strip], line[strip : 2 * strip]
        third, fourth = line[2 * strip : 3 * strip], line[3 * strip : width]
        # LLVM does not vectorise a running maximum of floats unless it may ignore NaN; of
        # integers it does, and four floats by four before that, written out: a loop over them is
        # not unrolled where the width is not known. NaN is passed over here, `exp` will show it.
        highest = ordered(real(-np.inf))
        for j in range(strip):
            best = real(-np.inf)
            best = first[j] if first[j] > best else best
            best = second[j] if second[j] > best else best
            best = third[j] if third[j] > best else best
            best = fourth[j] if fourth[j] > best else best
            place = ordered(best)
            highest = place if place > highest else highest
        best, old = unordered(highest), top[r]
        top[r] = best if best > old else old
        # While no key was allowed the maximum is -inf; any finite shift then gives weights 0.
        shift[r] = top[r] if top[r] > -np.inf else real(0)
        # Most tiles do not raise the maximum. exp(-inf) is 0: there was nothing to keep.
        decay[r] = 1.0 if old == shift[r] else math.exp(np.float64(old) - np.float64(shift[r]))


@device
def softmax_weights(rows: int, shift: Any, logits: Any, added: Any) -> None:
    """Turn the logits of each row into weights, relative to e^shift, and sum them."""
    noinline()
    width = logits.shape[1]
    for r in range(rows):
        total, s = logits.dtype.type(0), shift[r]
        for j in range(width):
            weight = exp(logits[r, j] - s)
            logits[r, j] = weight
            total += weight
        added[r] = total


@device
def proportional_weights(
    raw: Any, rows: int, shift: Any, plain: Any, logits: Any, added: Any
) -> None:
    """The same where the raw scores are weights already; `plain` says that there is no bias."""
    noinline()
    zero, width = logits.dtype.type(0), logits.shape[1]
    for r in range(rows):
        total, s = zero, shift[r]
        for j in range(width):
            power = logits.dtype.type(1) if plain else exp(logits[r, j] - s)
            weight = raw[r, j] * power if logits[r, j] > -np.inf else zero
            logits[r, j] = weight
            total += weight
        added[r] = total


@device
def softmax_logits(raw: Any, rows: int, logits: Any) -> None:
    """Logits, before bias and masks, of raw scores."""
    noinline()
    width = raw.shape[1]
    for r in range(rows):
        for j in range(width):
            logits[r, j] = raw[r, j]


@device
def proportional_logits(raw: Any, rows: int, logits: Any) -> None:
    """Outside its support a kernel counts as masked; NaN is inside, so that it shows."""
    noinline()
    zero, masked, width = raw.dtype.type(0), raw.dtype.type(-np.inf), raw.shape[1]
    for r in range(rows):
        for j in range(width):
            logits[r, j] = masked if raw[r, j] <= zero else zero


@device
def keeps(row_key: Any, column: Any, threshold: Any) -> Any:
    """Whether dropout keeps this pair: murmur3's finaliser of the pair's number."""
    x = np.uint32(row_key ^ np.uint32(np.uint32(column) * np.uint32(0x9E3779B1)))
    x = np.uint32(x ^ (x >> np.uint32(16)))
    x = np.uint32(x * np.uint32(0x85EBCA6B))
    x = np.uint32(x ^ (x >> np.uint32(13)))
    x = np.uint32(x * np.uint32(0xC2B2AE35))
    x = np.uint32(x ^ (x >> np.uint32(16)))
    return (x >> np.uint32(8)) >= threshold


@device
def drop(dropout: Any, block: Any, out: Any) -> None:
    """Dropout on the rows of a tile."""
    noinline()
    zero, threshold = out.dtype.type(0), np.uint32(dropout.threshold)
    width = out.shape[1]
    for r in range(block.rows):
        row = np.uint32(dropout.row_key[block.b, block.i + r])
        for j in range(width):
            kept = keeps(row, block.j + j, threshold)
            out[r, j] = out[r, j] * dropout.scale if kept else zero


@device
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
    noinline()
    zero, masked, width = raw.dtype.type(0), raw.dtype.type(-np.inf), raw.shape[1]
    for r in range(rows):
        shift, inverse = normal[r, 0], normal[r, 1]
        for j in range(width):
            allowed = logits[r, j] != masked
            weight = exp(logits[r, j] - shift) * inverse
            slope = slopes[r, j] * weight if allowed else zero
            weights[r, j] = weight
            slopes[r, j] = slope
            bias_slopes[r, j] = slope
            raw[r, j] = raw[r, j] if allowed else zero


@device
def proportional_slopes(
    raw: Any,
    logits: Any,
    rows: int,
    normal: Any,
    weights: Any,
    bias_slopes: Any,
    slopes: Any,
) -> None:
    noinline()
    zero, masked, width = raw.dtype.type(0), raw.dtype.type(-np.inf), raw.shape[1]
    for r in range(rows):
        shift, inverse = normal[r, 0], normal[r, 1]
        for j in range(width):
            allowed = logits[r, j] != masked
            power = exp(logits[r, j] - shift) * inverse
            score = raw[r, j] if allowed else zero
            slope = slopes[r, j] * power if allowed else zero
            raw[r, j] = score
            weights[r, j] = score * power
            slopes[r, j] = slope
            bias_slopes[r, j] = slope * score
