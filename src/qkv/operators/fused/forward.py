"""The forward driver: tiles of keys, a running maximum over the allowed ones, and the answer.

These functions are plain Python. `similarity.py` compiles a copy for each similarity, in which
`pack_query`, `pack_key`, `scores`, `to_logits` and `to_weights` are its own;
`SHARED` says that its scores are the logits already, so that one buffer serves for both.

Sums within a tile are kept in the type of the input, sums over tiles in float64, so that the
error does not grow with the number of keys.
"""
# ruff: noqa: F821
# mypy: disable-error-code="name-defined"

from __future__ import annotations

import math
from typing import Any

import numpy as np

from qkv.operators.fused.arithmetic import take_ticket, tile_function
from qkv.operators.fused.masks import limit, sift, span
from qkv.operators.fused.matrix import (
    add_product,
    add_transposed_product,
    all_finite,
    transpose_into,
)
from qkv.operators.fused.space import ROWS, WIDTH
from qkv.operators.fused.weights import drop, raise_tops

NARROW = 16  # below this many value columns the vector lanes run along the keys instead


def forward_block(
    b: int,
    i: int,
    rows: int,
    j0: int,
    width: int,
    packed_query: Any,
    packed_key: Any,
    reach: Any,
    value: Any,
    value_lines: Any,
    parameter: Any,
    index: Any,
    start: Any,
    stop: Any,
    mask: Any,
    bias: Any,
    row_key: Any,
    threshold: Any,
    dropout_scale: Any,
    masked: Any,
    m: int,
    kept: Any,
    raw: Any,
    logits: Any,
    shift: Any,
    decay: Any,
    added: Any,
    tile_answer: Any,
    top: Any,
    total: Any,
    answer: Any,
) -> None:
    """Take one tile of keys into the running answers of a block of queries."""
    tile_function()
    scores(packed_query, packed_key, parameter, raw, rows, reach)
    if kept.size > 0:
        for r in range(rows):
            for j in range(width):
                kept[b, i + r, j0 + j] = raw[r, j]
    if not SHARED:
        to_logits(raw, rows, logits)
    if masked or width < WIDTH:
        for r in range(rows):
            limit(b, i + r, j0, width, index, start, stop, mask, bias, m, logits[r])
    raise_tops(logits, rows, top, shift, decay)
    # From here on `logits` holds the weights.
    to_weights(raw, rows, shift, bias.size == 0, logits, added)
    for r in range(rows):
        total[r] = total[r] * decay[r] + np.float64(added[r])
    if row_key.size > 0:
        drop(b, i, rows, j0, row_key, threshold, dropout_scale, logits)
    for r in range(rows):
        for c in range(answer.shape[1]):
            tile_answer[r, c] = 0
    if value.shape[1] < NARROW:
        add_transposed_product(logits, value_lines, tile_answer, rows, value.shape[1])
    else:
        add_product(logits, value, tile_answer, rows, width)
    for r in range(rows):
        for c in range(answer.shape[1]):
            answer[r, c] = answer[r, c] * decay[r] + tile_answer[r, c]


def forward_chunks(
    counter: Any,
    chunk: int,
    query: Any,
    key: Any,
    value: Any,
    parameter: Any,
    index: Any,
    start: Any,
    stop: Any,
    mask: Any,
    bias: Any,
    row_key: Any,
    threshold: Any,
    dropout_scale: Any,
    answer: Any,
    log_total: Any,
    normal: Any,
    kept: Any,
    space: Any,
) -> None:
    """Draw chunks of queries until none is left: one call per thread, all with one counter.

    `kept` holds the scores, or is empty; `space` the buffers of this thread, see `space.py`.
    """
    tile_function()
    (
        packed_query,
        packed_key,
        value_lines,
        clean_key,
        clean_value,
        raw,
        logits,
        shift,
        decay,
        added,
        tile_answer,
        reach,
        top,
        total,
        running,
    ) = space
    if SHARED:
        logits = raw
    raw[:] = 0
    real = query.dtype.type
    batch, n, value_depth = answer.shape
    m = key.shape[1]
    chunks = (n + chunk - 1) // chunk
    masked = start.size + mask.size + bias.size > 0
    while True:
        item = take_ticket(counter)
        if item >= batch * chunks:
            return
        b = item // chunks
        i0 = item % chunks * chunk
        i1 = min(i0 + chunk, n)
        for r in range(0, i1 - i0, ROWS):
            last = min(r + ROWS, i1 - i0)
            rows_of_query = query[index[0, b], i0 + r : i0 + last]
            reach[r // ROWS] = pack_query(rows_of_query, packed_query[r:last])
        top[:] = -np.inf
        total[:] = 0
        running[:] = 0
        low, high = span(b, i0, i1, index, start, stop, m)
        for j0 in range(low, high, WIDTH):
            width = min(WIDTH, high - j0)
            key_tile = key[index[1, b], j0 : j0 + width]
            value_tile = value[index[2, b], j0 : j0 + width]
            key_reach = pack_key(key_tile, packed_key)
            if value_depth < NARROW:
                transpose_into(value_tile, value_lines)
            clean = not masked or (all_finite(key_tile) and all_finite(value_tile))
            for r in range(0, i1 - i0, ROWS):
                last = min(r + ROWS, i1 - i0)
                first_key, last_key = span(b, i0 + r, i0 + last, index, start, stop, m)
                if first_key >= j0 + width or last_key <= j0:
                    continue
                # A tile with NaN or inf is taken query by query, its masked keys set to 0.
                step = last - r if clean else 1
                for s in range(r, last, step):
                    tile_key, tile_value = packed_key, value_tile
                    if not clean:
                        logits[0, :] = 0
                        limit(b, i0 + s, j0, width, index, start, stop, mask, bias, m, logits[0])
                        sift(logits[0], packed_key, value_tile, clean_key, clean_value)
                        transpose_into(clean_value[:width], value_lines)
                        tile_key, tile_value = clean_key, clean_value[:width]
                    forward_block(
                        b,
                        i0 + s,
                        step,
                        j0,
                        width,
                        packed_query[s : s + step],
                        tile_key,
                        reach[r // ROWS] + key_reach,
                        tile_value,
                        value_lines,
                        parameter,
                        index,
                        start,
                        stop,
                        mask,
                        bias,
                        row_key,
                        threshold,
                        dropout_scale,
                        masked,
                        m,
                        kept,
                        raw,
                        logits,
                        shift,
                        decay,
                        added,
                        tile_answer,
                        top[s:],
                        total[s:],
                        running[s:],
                    )
        for r in range(i1 - i0):
            # A query that may look at nothing: answer 0, log_total -inf.
            if total[r] == 0:
                answer[b, i0 + r, :] = 0
                log_total[b, i0 + r] = -np.inf
                normal[b, i0 + r, :] = 0
            else:
                # No maximum although there is a total: every allowed score is NaN.
                largest = np.float64(top[r]) if top[r] > -np.inf else 0.0
                log_total[b, i0 + r] = real(largest + math.log(total[r]))
                # The backward pass takes e^(logit - maximum) / total, as here: the rounding of
                # logit - log_total would cost several digits where there are many keys.
                normal[b, i0 + r, 0] = real(largest)
                normal[b, i0 + r, 1] = real(1 / total[r])
                for c in range(value_depth):
                    answer[b, i0 + r, c] = real(running[r, c] / total[r])
