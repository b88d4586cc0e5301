"""The backward driver: weights are computed again from log_total, tile by tile.

Who adds to what is settled before the threads start, so there are no atomics and a run repeats
bit for bit. Batch entries that share a query, key, value or bias form a group; a unit of work is
one group and one piece of the keys. A unit owns the gradients of its keys and values; those of
the queries are summed over the pieces afterwards, from one layer per piece.

As in `forward.py`, each similarity compiles its own copy; sums over many tiles are in float64.
"""
# ruff: noqa: F821
# mypy: disable-error-code="name-defined"

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.operators.fused.arithmetic import take_ticket, tile_function
from qkv.operators.fused.masks import add_bias, limit, sift, span
from qkv.operators.fused.matrix import add_into, add_product, all_finite, transpose_into
from qkv.operators.fused.space import ROWS, WIDTH
from qkv.operators.fused.weights import drop

CHUNK = 128  # queries whose contributions are summed before they go into float64


def backward_block(
    b: int,
    i: int,
    rows: int,
    j0: int,
    width: int,
    packed_query: Any,
    packed_key: Any,
    reach: Any,
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
    answer: Any,
    log_total: Any,
    normal: Any,
    grad_answer: Any,
    grad_log_total: Any,
    kept: Any,
    raw: Any,
    logits: Any,
    weights: Any,
    slopes: Any,
    bias_slopes: Any,
    grad_query: Any,
    grad_key: Any,
    grad_value: Any,
    grad_parameter: Any,
) -> None:
    """Add what a block of queries and a tile of keys contribute to the gradients."""
    tile_function()
    if kept.size > 0:
        for r in range(rows):
            for j in range(width):
                raw[r, j] = kept[b, i + r, j0 + j]
            for j in range(width, WIDTH):
                raw[r, j] = 0
    else:
        scores(packed_query, packed_key, parameter, raw, rows, reach)
    for r in range(rows):
        for j in range(WIDTH):
            slopes[r, j] = 0
    add_product(grad_answer, value_lines, slopes, rows, value_lines.shape[0])
    if row_key.size > 0:
        drop(b, i, rows, j0, row_key, threshold, dropout_scale, slopes)
    for r in range(rows):
        mean = -grad_log_total[r]
        for c in range(grad_answer.shape[1]):
            mean += grad_answer[r, c] * answer[r, c]
        for j in range(WIDTH):
            slopes[r, j] -= mean
    to_logits(raw, rows, logits)
    if masked or width < WIDTH:
        for r in range(rows):
            limit(b, i + r, j0, width, index, start, stop, mask, bias, m, logits[r])
    for r in range(rows):
        if log_total[r] == -np.inf:
            for j in range(WIDTH):
                logits[r, j] = -np.inf
    to_slopes(raw, logits, rows, normal, weights, bias_slopes, slopes)
    if row_key.size > 0:
        drop(b, i, rows, j0, row_key, threshold, dropout_scale, weights)
    add_product(grad_answer[:rows].T, weights, grad_value, grad_value.shape[0], rows)
    gradient(
        packed_query,
        packed_key,
        parameter,
        raw,
        slopes,
        rows,
        reach,
        grad_query,
        grad_key,
        grad_parameter,
    )


def backward_units(
    counter: Any,
    piece: int,
    pieces: int,
    order: Any,
    group_start: Any,
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
    grad_answer: Any,
    grad_log_total: Any,
    out_query: Any,
    out_key: Any,
    out_value: Any,
    out_parameter: Any,
    out_bias: Any,
    space: Any,
) -> None:
    """Draw units until none is left: one call per thread, all with one counter."""
    tile_function()
    (
        packed_query,
        packed_key,
        value_lines,
        clean_key,
        clean_value,
        clean_lines,
        raw,
        logits,
        weights,
        slopes,
        bias_slopes,
        block_query,
        chunk_key,
        chunk_value,
        chunk_parameter,
        total_key,
        total_value,
        total_bias,
    ) = space
    raw[:] = 0
    dtype = query.dtype
    n, value_depth = answer.shape[1], answer.shape[2]
    m, d = key.shape[1], key.shape[2]
    units = (group_start.size - 1) * pieces
    masked = start.size + mask.size + bias.size > 0
    while True:
        unit = take_ticket(counter)
        if unit >= units:
            return
        group, layer = unit // pieces, unit % pieces
        for at in range(group_start[group], group_start[group + 1]):
            b = order[at]
            low, high = span(b, 0, n, index, start, stop, m)
            low, high = max(low, layer * piece), min(high, (layer + 1) * piece)
            for j0 in range(low, high, WIDTH):
                width = min(WIDTH, high - j0)
                key_tile = key[index[1, b], j0 : j0 + width]
                value_tile = value[index[2, b], j0 : j0 + width]
                key_reach = pack_key(key_tile, packed_key)
                transpose_into(value_tile, value_lines)
                clean = not masked or (all_finite(key_tile) and all_finite(value_tile))
                total_key[:] = 0
                total_value[:] = 0
                total_bias[:] = 0
                for i0 in range(0, n, CHUNK):
                    i1 = min(i0 + CHUNK, n)
                    first_key, last_key = span(b, i0, i1, index, start, stop, m)
                    if first_key >= j0 + width or last_key <= j0:
                        continue
                    chunk_key[:] = 0
                    chunk_value[:] = 0
                    chunk_parameter[:] = 0
                    for i in range(i0, i1, ROWS):
                        last = min(i + ROWS, i1)
                        first_key, last_key = span(b, i, last, index, start, stop, m)
                        if first_key >= j0 + width or last_key <= j0:
                            continue
                        rows_of_query = query[index[0, b], i:last]
                        reach = key_reach + pack_query(rows_of_query, packed_query[: last - i])
                        for r in range(last - i):
                            # NaN in a query that looks at nothing must not reach any key.
                            if log_total[b, i + r] == -np.inf:
                                packed_query[r, :] = 0
                        block_query[:] = 0
                        # A tile with NaN or inf: query by query, its masked keys set to 0.
                        step = last - i if clean else 1
                        for s in range(i, last, step):
                            tile_key, tile_lines = packed_key, value_lines
                            if not clean:
                                line = logits[0]
                                line[:] = 0
                                limit(b, s, j0, width, index, start, stop, mask, bias, m, line)
                                sift(line, packed_key, value_tile, clean_key, clean_value)
                                transpose_into(clean_value[:width], clean_lines)
                                tile_key, tile_lines = clean_key, clean_lines
                            backward_block(
                                b,
                                s,
                                step,
                                j0,
                                width,
                                packed_query[s - i :],
                                tile_key,
                                reach,
                                tile_lines,
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
                                answer[b, s : s + step],
                                log_total[b, s : s + step],
                                normal[b, s : s + step],
                                grad_answer[b, s : s + step],
                                grad_log_total[b, s : s + step],
                                kept,
                                raw,
                                logits,
                                weights,
                                slopes,
                                bias_slopes,
                                block_query[s - i :],
                                chunk_key,
                                chunk_value,
                                chunk_parameter,
                            )
                            if out_bias.size > 0:
                                add_bias(
                                    bias_slopes,
                                    index[9, b],
                                    s,
                                    step,
                                    j0,
                                    width,
                                    layer,
                                    total_bias,
                                    out_bias,
                                )
                        for r in range(last - i):
                            line_of_query = out_query[layer, index[6, b], i + r]
                            for c in range(d):
                                line_of_query[c] += block_query[r, c]
                    add_into(total_key, chunk_key)
                    add_into(total_value, chunk_value)
                    for c in range(parameter.size):
                        out_parameter[unit, c] += chunk_parameter[c]
                for j in range(width):
                    line_of_key = out_key[index[7, b], j0 + j]
                    for c in range(d):
                        line_of_key[c] += dtype.type(total_key[c, j])
                    line_of_value = out_value[index[8, b], j0 + j]
                    for c in range(value_depth):
                        line_of_value[c] += dtype.type(total_value[c, j])
                if out_bias.size > 0 and out_bias.shape[2] == 1 and out_bias.shape[3] > 1:
                    for j in range(width):
                        out_bias[0, index[9, b], 0, j0 + j] += dtype.type(total_bias[j])
