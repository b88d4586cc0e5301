"""Who may look at whom, applied to the scores of one tile."""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.jit import device
from qkv.jit.builtins import noinline
from qkv.operators.fused.inputs import ALLOWED, BIAS, INTERVAL


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
def apply_mask(masks: Any, block: Any, r: int, m: int, line: Any) -> None:
    """Add the bias to the logits of a block's query r; -inf where it may not look."""
    noinline()
    b, i, j0, width = block.b, block.i + r, block.j, block.width
    if not any_mask(masks) and width == line.size:
        return
    masked = line.dtype.type(-np.inf)
    first, last = interval(masks, b, i, m)
    first = min(max(first - j0, 0), width)
    last = min(max(last - j0, first), width)
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
