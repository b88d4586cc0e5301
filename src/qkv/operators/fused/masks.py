"""Who may look at whom, applied to the scores of one tile."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.jit import device
from qkv.jit.builtins import noinline
from qkv.operators.fused.inputs import ALLOWED, BIAS, INTERVAL, LANES, ROWS, Block

SHORTEST = 32  # keys in a tile, at least, unless there are no more: each has costs of its own


@device
def any_mask(masks: Any) -> Any:
    return masks.start.size + masks.allowed.size + masks.bias.size > 0


@device
def interval(masks: Any, b: int, i: int, m: int) -> Any:
    """The first key that query i of batch b may attend to, and the one behind the last."""
    if masks.start.size == 0:
        return 0, m
    entry, line = masks.entry[INTERVAL, b], i if masks.start.shape[1] > 1 else 0
    return max(masks.start[entry, line], 0), min(masks.stop[entry, line], m)


@device
def span(masks: Any, b: int, i0: int, i1: int, m: int) -> Any:
    """The interval that holds the intervals of the queries i0 to i1."""
    if masks.start.size == 0:
        return 0, m
    low, high = m, 0
    for i in range(i0, i1):
        first, last = interval(masks, b, i, m)
        if first < last:
            low, high = min(low, first), max(high, last)
    return low, high


@device
def next_block(masks: Any, tile: Any, i: int, stop: int, m: int) -> Any:
    """The next block of the queries i to stop, whose first and last see keys of the tile.

    Where none does, it is empty, and at `stop`.
    """
    if masks.start.size == 0:
        return i, min(i + ROWS, stop)
    while i < stop and not _sees(masks, tile, i, m):
        i += 1
    last = min(i + ROWS, stop)
    while last > i and not _sees(masks, tile, last - 1, m):
        last -= 1
    return i, last


@device
def sees_whole(masks: Any, tile: Any, m: int) -> Any:
    """Whether each query of a tile sees all its keys, so that there is nothing to hide."""
    if masks.allowed.size + masks.bias.size > 0:
        return False
    if masks.start.size == 0:
        return True
    rows = tile.rows if masks.start.shape[1] > 1 else 1
    for i in range(tile.i, tile.i + rows):
        first, last = interval(masks, tile.b, i, m)
        if first > tile.j or last < tile.j + tile.width:
            return False
    return True


@device
def _sees(masks: Any, tile: Any, i: int, m: int) -> Any:
    first, last = interval(masks, tile.b, i, m)
    return first < last and first < tile.j + tile.width and last > tile.j


@device
def seen_of_tile(masks: Any, block: Any, r: int, m: int) -> Any:
    """Of a block's query r: the first key of its run, and the part of the tile that is in it."""
    start, stop = interval(masks, block.b, block.i + r, m)
    first = min(max(start - block.j, 0), block.width)
    return start, first, min(max(stop - block.j, first), block.width)


@device
def runs_ascend(masks: Any, b: int, i0: int, i1: int, m: int) -> Any:
    """Whether neither the first nor the last key that the queries i0 to i1 see ever steps back."""
    if masks.start.size == 0 or masks.start.shape[1] == 1:
        return False  # they all see the same keys: there is nothing to search for
    first, last = 0, 0
    for i in range(i0, i1):
        start, stop = interval(masks, b, i, m)
        if start < first or stop < last:
            return False
        first, last = start, stop
    return True


@device
def queries_of(masks: Any, b: int, i0: int, i1: int, j: int, end: int) -> Any:
    """Of queries whose runs ascend those that may see the keys j to end: the first, and the one
    behind the last."""
    low, high = i0, i1
    while low < high:
        middle = (low + high) // 2
        if interval(masks, b, middle, end)[1] > j:
            high = middle
        else:
            low = middle + 1
    first, high = low, i1
    while low < high:
        middle = (low + high) // 2
        if interval(masks, b, middle, end)[0] >= end:
            high = middle
        else:
            low = middle + 1
    return first, low


@device
def tile_end(masks: Any, b: int, i0: int, i1: int, j: int, limit: int) -> Any:
    """Where a tile that begins at key j ends, at most at `limit`; runs of the queries i0 to i1
    ascend.

    Of documents one after the other, each query sees its own alone: a tile had better end with a
    document than hold parts of several.
    """
    for i in range(i0, i1 - 1):
        seen = interval(masks, b, i, limit)[1]
        if seen >= limit:
            break
        if seen >= j + SHORTEST and interval(masks, b, i + 1, limit)[0] >= seen:
            return seen
    return limit


@device
def next_tile(masks: Any, b: int, i0: int, i1: int, j: int, limit: int, ascending: Any) -> Any:
    """The tile from key j on, at most to `limit`, and those of the queries i0 to i1 to meet it."""
    if not ascending:
        return Block(b, i0, 0, i1 - i0, j, limit - j)
    first, last = queries_of(masks, b, i0, i1, j, limit)
    end = tile_end(masks, b, first, last, j, limit)
    first, last = queries_of(masks, b, first, last, j, end)
    return Block(b, first, first - i0, last - first, j, end - j)


@device
def lanes(width: int) -> Any:
    """The lanes that so many keys take, in whole vectors."""
    return (width + LANES - 1) // LANES * LANES


@device
def apply_mask(masks: Any, block: Any, r: int, m: int, line: Any) -> None:
    """Add the bias to the logits of a block's query r; -inf where it may not look."""
    noinline()
    b, i, j0, width = block.b, block.i + r, block.j, block.width
    if not any_mask(masks) and width == line.size:
        return
    masked = line.dtype.type(-np.inf)
    _, first, last = seen_of_tile(masks, block, r, m)
    if masks.bias.size > 0:
        added = masks.bias[masks.entry[BIAS, b], i if masks.bias.shape[1] > 1 else 0]
        if added.size == 1:
            for j in range(first, last):
                line[j] += added[0]
        else:
            here = added[j0:]
            for j in range(first, last):
                # A key masked by its bias stays masked, even if its score is NaN or +inf.
                line[j] = masked if here[j] == masked else line[j] + here[j]
        if added.size == 1 and added[0] == masked:
            line[first:last] = masked
    if masks.allowed.size > 0:
        allowed = masks.allowed[masks.entry[ALLOWED, b], i if masks.allowed.shape[1] > 1 else 0]
        if allowed.size == 1:
            if not allowed[0]:
                line[first:last] = masked
        else:
            visible = allowed[j0:]
            for j in range(first, last):
                line[j] = line[j] if visible[j] else masked
    line[:first] = masked
    line[last:] = masked


# Zero times NaN is NaN, so a weight of 0 alone does not keep a masked NaN out.


@device
def zero_masked_lines(logits: Any, lines: Any, clean: Any) -> None:
    """Copy keys that are columns, with 0 in place of those whose logit is -inf."""
    noinline()
    masked = logits.dtype.type(-np.inf)
    for c in range(lines.shape[0]):
        for j in range(lines.shape[1]):
            clean[c, j] = lines[c, j] if logits[j] != masked else 0


@device
def zero_masked_rows(logits: Any, rows: Any, clean: Any) -> None:
    """The same for keys or values that are rows."""
    noinline()
    masked = logits.dtype.type(-np.inf)
    for j in range(rows.shape[0]):
        for c in range(rows.shape[1]):
            clean[j, c] = rows[j, c] if logits[j] != masked else 0
