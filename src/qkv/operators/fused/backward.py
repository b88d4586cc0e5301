"""The backward driver: weights are computed again from log_total, tile by tile.

Who adds to what is settled before the threads start, so there are no atomics and a run repeats
bit for bit. Batch entries that share a query, key, value or bias form a group; a unit of work is
one group and one piece of the keys. A unit owns the gradients of its keys and values; those of
the queries are summed over the pieces afterwards, from one layer per piece.

As in `forward.py`, tile functions are called by address; sums over many tiles are in float64.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from qkv.jit import device, kernel
from qkv.jit.builtins import invoke, noinline
from qkv.jit.signature import PerThread
from qkv.operators.fused.forward import Outputs
from qkv.operators.fused.gradients import (
    OF_BIAS,
    Gradients,
    Scratch,
    Sums,
    Tokens,
    Units,
    Upstream,
    narrowed,
)
from qkv.operators.fused.inputs import (
    KEY,
    QUERY,
    VALUE,
    Block,
    Dropout,
    Functions,
    Inputs,
    Masks,
)
from qkv.operators.fused.masks import (
    any_mask,
    apply_mask,
    lanes,
    next_block,
    next_tile,
    runs_ascend,
    seen_of_tile,
    sees_whole,
    span,
    zero_masked_lines,
    zero_masked_rows,
)
from qkv.operators.fused.matrix import (
    add_into,
    add_product,
    add_rows,
    add_transposed_product,
    all_finite,
    copy_into,
    transpose_into,
)
from qkv.operators.fused.packing import pack_columns, pack_rows
from qkv.operators.fused.weights import (
    drop,
    proportional_logits,
    proportional_slopes,
    softmax_logits,
    softmax_slopes,
)

CHUNK = 128  # queries whose contributions are summed before they go into float64


@kernel
def backward(
    start: int,
    stop: int,
    units: Units,
    functions: Functions,
    inputs: Inputs,
    masks: Masks,
    dropout: Dropout,
    outputs: Outputs,
    upstream: Upstream,
    gradients: Gradients,
    scratch: PerThread[Scratch],
) -> None:
    """Differentiate the units from `start` to `stop`."""
    noinline()
    scratch.raw[:] = 0
    n, m, width = inputs.query.shape[1], inputs.key.shape[1], scratch.raw.shape[1]
    for unit in range(start, stop):
        group, layer = unit // units.pieces, unit % units.pieces
        _begin_unit(units, group, layer, functions, gradients)
        for at in range(units.group_start[group], units.group_start[group + 1]):
            b = units.order[at]
            low, high = span(masks, b, 0, n, m)
            low, high = max(low, layer * units.piece), min(high, (layer + 1) * units.piece)
            ascending = runs_ascend(masks, b, 0, n, m)
            while low < high:
                tile = next_tile(masks, b, 0, n, low, min(low + width, high), ascending)
                buffers = narrowed(scratch, lanes(tile.width), functions, units)
                _meet_tile(
                    tile, unit, units, functions, inputs, masks, dropout, outputs, upstream,
                    gradients, buffers,
                )  # fmt: skip
                low += tile.width


@device
def _begin_unit(units: Any, group: int, layer: int, functions: Any, gradients: Any) -> None:
    """Set to 0 what a unit adds to, shortly before it does so: it is in the caches then."""
    noinline()
    first = layer * units.piece
    last = min(first + units.piece, gradients.value.shape[1])
    for at in range(units.group_start[group], units.group_start[group + 1]):
        b = units.order[at]
        if functions.gradient != 0:
            gradients.query[layer, gradients.entry[QUERY, b]] = 0
            gradients.key[gradients.entry[KEY, b], first:last] = 0
        gradients.value[gradients.entry[VALUE, b], first:last] = 0


@device
def _meet_tile(
    tile: Any,
    unit: int,
    units: Any,
    functions: Any,
    inputs: Any,
    masks: Any,
    dropout: Any,
    outputs: Any,
    upstream: Any,
    gradients: Any,
    scratch: Any,
) -> None:
    """Sum up what all queries contribute to the gradients of one tile of keys."""
    if tile.rows == 0:
        return
    b, j, width, m = tile.b, tile.j, tile.width, inputs.key.shape[1]
    stop = tile.i + tile.rows
    key = inputs.key[inputs.entry[KEY, b], j : j + width]
    value = inputs.value[inputs.entry[VALUE, b], j : j + width]
    scored = outputs.kept.size > 0 or functions.score_rows
    columns_needed = not scored or not functions.differentiate_rows
    _pack(functions, key, value, columns_needed, scratch)
    as_it_is = functions.differentiate_rows and functions.transform == 0
    tokens = Tokens(
        key if as_it_is else scratch.key_rows[: width if functions.differentiate_rows else 0],
        scratch.key_columns[: scratch.key_columns.shape[0] if columns_needed else 0],
        value,
        scratch.value_columns[: 0 if functions.score_rows else value.shape[1]],
    )
    clean = sees_whole(masks, tile, inputs.key.shape[1]) or (all_finite(key) and all_finite(value))
    scratch.total_bias[:] = 0
    grad_key = gradients.key[gradients.entry[KEY, b], j : j + width]
    grad_value = gradients.value[gradients.entry[VALUE, b], j : j + width]
    key_rows, value_rows = functions.differentiate_rows, units.value_rows
    # What few queries contribute goes to its place at once.
    few = tile.rows <= CHUNK
    sums = Sums(
        grad_key if few and key_rows else scratch.chunk_key,
        grad_value if few and value_rows else scratch.chunk_value,
    )
    if not few:
        scratch.total_key[:] = 0
        scratch.total_value[:] = 0
    for i0 in range(tile.i, stop, CHUNK):
        i1 = min(i0 + CHUNK, stop)
        _begin_chunk(few and key_rows, few and value_rows, scratch)
        i, last = next_block(masks, tile, i0, i1, m)
        while i < last:
            query = inputs.query[inputs.entry[QUERY, b], i:last]
            _begin(functions, query, outputs.log_total[b, i:last], scratch)
            # A tile with NaN or inf: query by query, its masked keys set to 0.
            step = last - i if clean else 1
            for s in range(i, last, step):
                block = Block(b, s, s - i, step, j, width)
                met = tokens if clean else _cleaned(masks, block, m, tokens, scratch)
                _meet_block(
                    block, units, functions, inputs.parameter, masks, dropout, outputs, upstream,
                    met, sums, m, scratch,
                )  # fmt: skip
                if gradients.bias.size > 0:
                    entry = gradients.entry[OF_BIAS, b]
                    _add_bias(block, unit % units.pieces, entry, gradients.bias, scratch)
            if functions.gradient != 0:
                _add_query(b, i, last - i, unit % units.pieces, gradients, scratch)
            i, last = next_block(masks, tile, last, i1, m)
        if not few:
            if functions.gradient != 0:
                add_into(scratch.total_key, scratch.chunk_key)
            add_into(scratch.total_value, scratch.chunk_value)
        for c in range(inputs.parameter.size):
            gradients.parameter[unit, c] += scratch.chunk_parameter[c]
    if not few:
        if functions.gradient != 0:
            add_rows(grad_key, scratch.total_key, key_rows)
        add_rows(grad_value, scratch.total_value, value_rows)
    else:
        _add_columns(functions, units, grad_key, grad_value, scratch)
    _add_key_bias(tile, gradients, scratch)


@device
def _begin_chunk(key_in_place: Any, value_in_place: Any, scratch: Any) -> None:
    if not key_in_place:
        scratch.chunk_key[:] = 0
    if not value_in_place:
        scratch.chunk_value[:] = 0
    scratch.chunk_parameter[:] = 0


@device
def _add_columns(functions: Any, units: Any, grad_key: Any, grad_value: Any, scratch: Any) -> None:
    """Add the sums that are columns; rows are in their place already."""
    if functions.gradient != 0 and not functions.differentiate_rows:
        add_rows(grad_key, scratch.chunk_key, False)
    if not units.value_rows:
        add_rows(grad_value, scratch.chunk_value, False)


@device
def _pack(functions: Any, key: Any, value: Any, columns_needed: Any, scratch: Any) -> None:
    """A tile as the tile functions take it; rows that nothing is done to stay."""
    scratch.key_reach[0] = 0
    if functions.differentiate_rows and functions.transform != 0:
        pack_rows(functions, key, scratch.key_rows[: key.shape[0]], scratch.key_reach)
    if columns_needed:
        pack_columns(functions, key, scratch.key_columns, scratch.key_reach)
    if not functions.score_rows:
        transpose_into(value, scratch.value_columns)


@device
def _begin(functions: Any, query: Any, log_total: Any, scratch: Any) -> None:
    """Pack a block of queries, whose gradient is 0 as yet."""
    packed = scratch.packed_query[: query.shape[0]]
    pack_rows(functions, query, packed, scratch.query_reach)
    for r in range(query.shape[0]):
        # NaN in a query that looks at nothing must not reach any key.
        if log_total[r] == -np.inf:
            packed[r, :] = 0
    scratch.block_query[:] = 0


@device
def _cleaned(masks: Any, block: Any, m: int, tokens: Any, scratch: Any) -> Any:
    """A copy of the tile, with 0 in place of what the one query of the block may not look at."""
    line = scratch.logits[0]
    line[:] = 0
    apply_mask(masks, block, 0, m, line)
    zero_masked_rows(line, tokens.key_rows, scratch.clean_key_rows)
    zero_masked_lines(line, tokens.key_columns, scratch.clean_key_columns)
    value = scratch.clean_value[: block.width]
    zero_masked_rows(line, tokens.value_rows, value)
    # The tile's own columns are not needed again: all its queries meet it cleaned.
    transpose_into(value, scratch.value_columns)
    return Tokens(
        scratch.clean_key_rows[: tokens.key_rows.shape[0]],
        scratch.clean_key_columns[: tokens.key_columns.shape[0]],
        value,
        scratch.value_columns[: tokens.value_columns.shape[0]],
    )


@device
def _meet_block(
    block: Any,
    units: Any,
    functions: Any,
    parameter: Any,
    masks: Any,
    dropout: Any,
    outputs: Any,
    upstream: Any,
    tokens: Any,
    sums: Any,
    m: int,
    scratch: Any,
) -> None:
    """Add what a block of queries and a tile of keys contribute to the gradients."""
    noinline()
    b, rows, width, raw = block.b, block.rows, block.width, scratch.raw
    first, last = block.i, block.i + rows
    query = scratch.packed_query[block.row : block.row + rows]
    reach = scratch.query_reach[0] + scratch.key_reach[0]
    if outputs.kept.size > 0:
        for r in range(rows):
            start, begin, end = seen_of_tile(masks, block, r, m)
            line = outputs.kept[b, first + r, block.j + begin - start :]
            raw[r, :begin] = 0
            copy_into(line[: end - begin], raw[r, begin:])
            raw[r, end:] = 0
    elif functions.score_rows:
        invoke(functions.scores, (query, tokens.key_rows, parameter, raw, rows, reach))
    else:
        invoke(functions.scores, (query, tokens.key_columns, parameter, raw, rows, reach))
    grad_answer = upstream.answer[b, first:last]
    if functions.gradient != 0 or masks.bias.size > 0:
        _weight_slopes(block, dropout, grad_answer, outputs, upstream, tokens, scratch)
    logits, slopes, weights = scratch.logits, scratch.slopes, scratch.weights
    if functions.proportional:
        proportional_logits(raw, rows, logits)
    else:
        softmax_logits(raw, rows, logits)
    if width < raw.shape[1] or any_mask(masks):
        for r in range(rows):
            apply_mask(masks, block, r, m, logits[r])
    for r in range(rows):
        if outputs.log_total[b, first + r] == -np.inf:
            for j in range(logits.shape[1]):
                logits[r, j] = -np.inf
    normal = outputs.normal[b, first:last]
    if functions.proportional:
        proportional_slopes(raw, logits, rows, normal, weights, scratch.bias_slopes, slopes)
    else:
        softmax_slopes(raw, logits, rows, normal, weights, scratch.bias_slopes, slopes)
    if dropout.row_key.size > 0:
        drop(dropout, block, weights)
    value_depth = grad_answer.shape[1]
    if units.value_rows:
        add_product(weights[:rows].T, grad_answer, sums.value, width, rows, value_depth)
    else:
        columns = weights.shape[1]
        add_product(grad_answer.T, weights, sums.value, value_depth, rows, columns)
    if functions.gradient == 0:
        return
    key = tokens.key_rows if functions.differentiate_rows else tokens.key_columns
    invoke(
        functions.gradient,
        (
            query, key, parameter, raw, slopes, rows, reach,
            scratch.block_query[block.row :], sums.key, scratch.chunk_parameter,
        ),
    )  # fmt: skip


@device
def _weight_slopes(
    block: Any,
    dropout: Any,
    grad_answer: Any,
    outputs: Any,
    upstream: Any,
    tokens: Any,
    scratch: Any,
) -> None:
    """slopes = the gradient of each logit divided by its weight."""
    rows, slopes = block.rows, scratch.slopes
    for r in range(rows):
        for j in range(slopes.shape[1]):
            slopes[r, j] = 0
    columns = tokens.value_columns
    if columns.shape[0] > 0:
        add_product(grad_answer, columns, slopes, rows, columns.shape[0], columns.shape[1])
    else:
        add_transposed_product(grad_answer, tokens.value_rows, slopes, rows, block.width)
    if dropout.row_key.size > 0:
        drop(dropout, block, slopes)
    for r in range(rows):
        answer = outputs.answer[block.b, block.i + r]
        mean = -upstream.log_total[block.b, block.i + r]
        for c in range(answer.size):
            mean += grad_answer[r, c] * answer[c]
        for j in range(slopes.shape[1]):
            slopes[r, j] -= mean


@device
def _add_bias(block: Any, layer: int, entry: int, out: Any, scratch: Any) -> None:
    """Add a block's gradient to that of the bias, summed over the axes that it is broadcast on.

    `out` has one layer per piece of the keys if it is broadcast over them, and one layer if not.
    """
    noinline()
    slopes, j0, width = scratch.bias_slopes, block.j, block.width
    for r in range(block.rows):
        line = block.i + r if out.shape[2] > 1 else 0
        if out.shape[3] == 1:
            total = out[layer, entry, line, 0]
            for j in range(width):
                total += slopes[r, j]
            out[layer, entry, line, 0] = total
        elif out.shape[2] == 1:
            for j in range(width):
                scratch.total_bias[j] += slopes[r, j]
        else:
            row = out[0, entry, line, j0:]
            for j in range(width):
                row[j] += slopes[r, j]


@device
def _add_query(b: int, i: int, rows: int, layer: int, gradients: Any, scratch: Any) -> None:
    entry = gradients.entry[QUERY, b]
    for r in range(rows):
        line = gradients.query[layer, entry, i + r]
        for c in range(line.size):
            line[c] += scratch.block_query[r, c]


@device
def _add_key_bias(tile: Any, gradients: Any, scratch: Any) -> None:
    """Add the sums of a tile to the gradient of a bias that all queries share."""
    bias, real = gradients.bias, gradients.key.dtype.type
    if bias.size > 0 and bias.shape[2] == 1 and bias.shape[3] > 1:
        entry = gradients.entry[OF_BIAS, tile.b]
        for j in range(tile.width):
            bias[0, entry, 0, tile.j + j] += real(scratch.total_bias[j])
