"""Who may look at whom, applied to the scores of one tile.

Every kernel takes the same masks: intervals (start, stop) of keys per query, a boolean array and
a float bias. An array of size 0 is an absent mask; an axis of size 1 is broadcast.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from qkv.operators.fused.arithmetic import INNER_OPTIONS, tile_function


@numba.njit(**INNER_OPTIONS)
def interval(b: int, i: int, index: Any, start: Any, stop: Any, m: int) -> Any:
    """The first key that query i of batch b may attend to, and the one behind the last."""
    if start.size == 0:
        return 0, m
    line = i if start.shape[1] > 1 else 0
    return max(start[index[3, b], line], 0), min(stop[index[3, b], line], m)


@numba.njit(**INNER_OPTIONS)
def span(b: int, i0: int, i1: int, index: Any, start: Any, stop: Any, m: int) -> Any:
    """The interval that holds the intervals of the queries i0 to i1."""
    if start.size == 0:
        return 0, m
    low, high = m, 0
    for i in range(i0, i1):
        first, last = interval(b, i, index, start, stop, m)
        if first < last:
            low, high = min(low, first), max(high, last)
    return low, high


@numba.njit(**INNER_OPTIONS)
def limit(
    b: int,
    i: int,
    j0: int,
    width: int,
    index: Any,
    start: Any,
    stop: Any,
    mask: Any,
    bias: Any,
    m: int,
    line: Any,
) -> None:
    """Add the bias to one query's logits over the keys from j0; -inf where it may not look."""
    tile_function()
    if start.size + mask.size + bias.size == 0 and width == line.size:
        return
    masked = line.dtype.type(-np.inf)
    first, last = interval(b, i, index, start, stop, m)
    first = min(max(first - j0, 0), width)
    last = min(max(last - j0, first), width)
    if bias.size > 0:
        added = bias[index[5, b], i if bias.shape[1] > 1 else 0]
        if added.size == 1:
            for j in range(first, last):
                line[j] += added[0]
        else:
            for j in range(first, last):
                line[j] += added[j0 + j]
            # A key masked by its bias stays masked, even if its score is NaN or +inf.
            for j in range(first, last):
                if added[j0 + j] == masked:
                    line[j] = masked
        if added.size == 1 and added[0] == masked:
            line[first:last] = masked
    if mask.size > 0:
        allowed = mask[index[4, b], i if mask.shape[1] > 1 else 0]
        if allowed.size == 1:
            if not allowed[0]:
                line[first:last] = masked
        else:
            for j in range(first, last):
                line[j] = line[j] if allowed[j0 + j] else masked
    line[:first] = masked
    line[last:] = masked


@numba.njit(**INNER_OPTIONS)
def sift(allowed: Any, packed_key: Any, value: Any, clean_key: Any, clean_value: Any) -> None:
    """Copy a tile, with 0 in place of every key and value that this query may not look at.

    Zero times NaN is NaN, so a weight of 0 alone does not keep a masked NaN out.
    """
    tile_function()
    masked = allowed.dtype.type(-np.inf)
    for c in range(packed_key.shape[0]):
        for j in range(packed_key.shape[1]):
            clean_key[c, j] = packed_key[c, j] if allowed[j] != masked else 0
    for j in range(value.shape[0]):
        for c in range(value.shape[1]):
            clean_value[j, c] = value[j, c] if allowed[j] != masked else 0


@numba.njit(**INNER_OPTIONS)
def add_bias(
    slopes: Any,
    entry: int,
    i: int,
    rows: int,
    j0: int,
    width: int,
    layer: int,
    column_totals: Any,
    out: Any,
) -> None:
    """Add a block's gradient to that of the bias, summed over the axes that it is broadcast on.

    `out` has one layer per piece of the keys if it is broadcast over them, and one layer if not.
    """
    tile_function()
    for r in range(rows):
        line = i + r if out.shape[2] > 1 else 0
        if out.shape[3] == 1:
            total = out[layer, entry, line, 0]
            for j in range(width):
                total += slopes[r, j]
            out[layer, entry, line, 0] = total
        elif out.shape[2] == 1:
            for j in range(width):
                column_totals[j] += slopes[r, j]
        else:
            row = out[0, entry, line]
            for j in range(width):
                row[j0 + j] += slopes[r, j]
