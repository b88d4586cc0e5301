"""The forward driver: tiles of keys, a running maximum over the allowed ones, and the answer.

It is compiled once for a type; a similarity's tile functions are called by their addresses.

Sums within a tile are kept in the type of the input, sums over tiles in float64, so that the
error does not grow with the number of keys.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from qkv.jit import device, kernel
from qkv.jit.builtins import in_lines, invoke, noinline
from qkv.jit.signature import Double1, Double2, PerThread, Real1, Real2, Real3
from qkv.operators.fused.inputs import (
    KEY,
    QUERY,
    ROWS,
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
    interval,
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
    add_product,
    add_transposed_product,
    all_finite,
    copy_into,
    transpose_into,
)
from qkv.operators.fused.packing import pack_columns, pack_rows
from qkv.operators.fused.weights import (
    drop,
    proportional_logits,
    proportional_weights,
    softmax_weights,
    update_running_max,
)

NARROW = 16  # below this many value columns the vector lanes run along the keys instead


class Outputs(NamedTuple):
    """Where the keys are cut into pieces, the first three have one layer for each of them."""

    answer: Real3  # (batch, n, d_v)
    log_total: Real2  # (batch, n)
    normal: Real3  # (batch, n, 2): each query's maximum and the inverse of its total
    kept: Real3  # (batch, n, longest): the scores of each query's run of keys, or empty


class Cut(NamedTuple):
    """How the work is cut: queries in chunks, keys in pieces."""

    batch: int
    chunk: int  # queries in a chunk
    piece: int  # keys in a piece


class Scratch(NamedTuple):
    packed_query: Real2
    packed_key: Real2
    value_lines: Real2
    clean_key: Real2
    clean_value: Real2
    raw: Real2
    logits: Real2
    shift: Real1
    decay: Double1
    added: Real1
    tile_answer: Real2
    query_reach: Real1
    key_reach: Real1
    top: Real1
    total: Double1
    running: Double2


def scratch_shapes(
    chunk: int, width: int, query_depth: int, key_depth: int, value_depth: int, key_rows: bool
) -> Scratch:
    """The buffers of a thread for chunks of so many queries and tiles of `width` keys, as rows or
    as columns; the depths are those of what is packed."""
    key = (width, key_depth) if key_rows else (key_depth, width)
    return Scratch(
        packed_query=(chunk, query_depth),
        packed_key=key,
        value_lines=(value_depth, width),
        clean_key=key,
        clean_value=(width, value_depth),
        raw=(ROWS, width),
        logits=(ROWS, width),
        shift=(ROWS,),
        decay=(ROWS,),
        added=(ROWS,),
        tile_answer=(ROWS, value_depth),
        query_reach=(chunk // ROWS + 1,),
        key_reach=(1,),
        top=(chunk,),
        total=(chunk,),
        running=(chunk, value_depth),
    )


@kernel
def forward(
    start: int,
    stop: int,
    cut: Cut,
    functions: Functions,
    inputs: Inputs,
    masks: Masks,
    dropout: Dropout,
    outputs: Outputs,
    scratch: PerThread[Scratch],
) -> None:
    """Answer chunks of queries from pieces of the keys: `start` to `stop`, counted over layers of
    the whole batch."""
    noinline()
    n, m, width = outputs.answer.shape[1], inputs.key.shape[1], scratch.logits.shape[1]
    chunks = (n + cut.chunk - 1) // cut.chunk
    scratch.raw[:] = 0
    for item in range(start, stop):
        entry = item // chunks
        layer, b = entry // cut.batch, entry % cut.batch
        i0 = item % chunks * cut.chunk
        i1 = min(i0 + cut.chunk, n)
        _begin(functions, inputs.query[inputs.entry[QUERY, b], i0:i1], scratch)
        low, high = span(masks, b, i0, i1, m)
        low, high = max(low, layer * cut.piece), min(high, (layer + 1) * cut.piece)
        ascending = runs_ascend(masks, b, i0, i1, m)
        while low < high:
            tile = next_tile(masks, b, i0, i1, low, min(low + width, high), ascending)
            buffers = _narrowed(scratch, lanes(tile.width), functions.score_rows)
            _meet_tile(tile, functions, inputs, masks, dropout, outputs.kept, buffers)
            low += tile.width
        _finish(entry, i0, i1 - i0, outputs, scratch)
        if outputs.kept.size > 0:
            _clear_beyond_runs(masks, b, i0, i1, m, outputs.kept)


@device
def _narrowed(scratch: Any, width: int, key_rows: Any) -> Any:
    """The buffers for a tile of so many lanes."""
    packed_key, clean_key = scratch.packed_key, scratch.clean_key
    return Scratch(
        scratch.packed_query,
        packed_key if key_rows else in_lines(packed_key, width),
        in_lines(scratch.value_lines, width),
        clean_key if key_rows else in_lines(clean_key, width),
        scratch.clean_value,
        in_lines(scratch.raw, width),
        in_lines(scratch.logits, width),
        scratch.shift,
        scratch.decay,
        scratch.added,
        scratch.tile_answer,
        scratch.query_reach,
        scratch.key_reach,
        scratch.top,
        scratch.total,
        scratch.running,
    )


@device
def _begin(functions: Any, query: Any, scratch: Any) -> None:
    """Pack a chunk of queries, which have seen nothing yet."""
    for r in range(0, query.shape[0], ROWS):
        last = min(r + ROWS, query.shape[0])
        reach = scratch.query_reach[r // ROWS :]
        pack_rows(functions, query[r:last], scratch.packed_query[r:last], reach)
    rows = query.shape[0]
    scratch.top[:rows] = -np.inf
    scratch.total[:rows] = 0
    scratch.running[:rows] = 0


@device
def _pack(functions: Any, key: Any, scratch: Any) -> None:
    """A tile of keys as the tile functions take it; rows that nothing is done to stay."""
    scratch.key_reach[0] = 0
    if not functions.score_rows:
        pack_columns(functions, key, scratch.packed_key, scratch.key_reach)
    elif functions.transform != 0:
        pack_rows(functions, key, scratch.packed_key[: key.shape[0]], scratch.key_reach)


@device
def _meet_tile(
    tile: Any, functions: Any, inputs: Any, masks: Any, dropout: Any, kept: Any, scratch: Any
) -> None:
    """Take one tile of keys into the running answers of a chunk of queries, block by block."""
    if tile.rows == 0:
        return
    b, j, width = tile.b, tile.j, tile.width
    key = inputs.key[inputs.entry[KEY, b], j : j + width]
    value = inputs.value[inputs.entry[VALUE, b], j : j + width]
    _pack(functions, key, scratch)
    as_it_is = functions.score_rows and functions.transform == 0
    rows = width if functions.score_rows else scratch.packed_key.shape[0]
    packed_key = key if as_it_is else scratch.packed_key[:rows]
    if value.shape[1] < NARROW:
        transpose_into(value, scratch.value_lines)
    clean = sees_whole(masks, tile, inputs.key.shape[1]) or (all_finite(key) and all_finite(value))
    m = inputs.key.shape[1]
    i0 = tile.i - tile.row  # the first query of the chunk
    r, last = next_block(masks, tile, tile.i, tile.i + tile.rows, m)
    while r < last:
        r, last = r - i0, last - i0
        # The block may stretch over two of those that the queries were packed in.
        reach = max(scratch.query_reach[r // ROWS], scratch.query_reach[(last - 1) // ROWS])
        reach += scratch.key_reach[0]
        # A tile with NaN or inf is taken query by query, its masked keys set to 0.
        step = last - r if clean else 1
        for s in range(r, last, step):
            block = Block(b, i0 + s, s, step, j, width)
            tile_key, tile_value = packed_key, value
            if not clean:
                _clean(functions, masks, block, m, packed_key, value, scratch)
                tile_key, tile_value = scratch.clean_key[:rows], scratch.clean_value[:width]
            _meet_block(
                block, functions, inputs.parameter, masks, dropout, tile_key, tile_value, reach, m,
                kept, scratch,
            )  # fmt: skip
        r, last = next_block(masks, tile, i0 + last, tile.i + tile.rows, m)


@device
def _clean(
    functions: Any, masks: Any, block: Any, m: int, key: Any, value: Any, scratch: Any
) -> None:
    """Copy the tile, with 0 in place of what the one query of the block may not look at."""
    line = scratch.logits[0]
    line[:] = 0
    apply_mask(masks, block, 0, m, line)
    zero_masked_rows(line, value, scratch.clean_value)
    transpose_into(scratch.clean_value[: block.width], scratch.value_lines)
    if functions.score_rows:
        zero_masked_rows(line, key, scratch.clean_key)
    else:
        zero_masked_lines(line, key, scratch.clean_key)


@device
def _meet_block(
    block: Any,
    functions: Any,
    parameter: Any,
    masks: Any,
    dropout: Any,
    key: Any,
    value: Any,
    reach: Any,
    m: int,
    kept: Any,
    scratch: Any,
) -> None:
    """Take one tile of keys into the running answers of a block of queries."""
    noinline()
    row, rows, width = block.row, block.rows, block.width
    query, raw = scratch.packed_query[row : row + rows], scratch.raw
    invoke(functions.scores, (query, key, parameter, raw, rows, reach))
    if kept.size > 0:
        for r in range(rows):
            start, first, last = seen_of_tile(masks, block, r, m)
            copy_into(raw[r, first:last], kept[block.b, block.i + r, block.j + first - start :])
    logits = scratch.logits if functions.proportional else raw
    if functions.proportional:
        proportional_logits(raw, rows, logits)
    if width < logits.shape[1] or any_mask(masks):
        for r in range(rows):
            apply_mask(masks, block, r, m, logits[r])
    update_running_max(logits, rows, scratch.top[row:], scratch.shift, scratch.decay)
    # From here on `logits` holds the weights.
    if functions.proportional:
        plain = masks.bias.size == 0
        proportional_weights(raw, rows, scratch.shift, plain, logits, scratch.added)
    else:
        softmax_weights(rows, scratch.shift, logits, scratch.added)
    for r in range(rows):
        total = scratch.total[row + r] * scratch.decay[r]
        scratch.total[row + r] = total + np.float64(scratch.added[r])
    if dropout.row_key.size > 0:
        drop(dropout, block, logits)
    _add_values(row, rows, logits, value, scratch)


@device
def _add_values(row: int, rows: int, weights: Any, value: Any, scratch: Any) -> None:
    """Add the tile's weighted values to the running answers, which fade as the maximum rises."""
    answer, running, columns = scratch.tile_answer, scratch.running, value.shape[1]
    for r in range(rows):
        for c in range(columns):
            answer[r, c] = 0
    if columns < NARROW:
        add_transposed_product(weights, scratch.value_lines, answer, rows, columns)
    else:
        add_product(weights, value, answer, rows, value.shape[0], columns)
    for r in range(rows):
        for c in range(columns):
            running[row + r, c] = running[row + r, c] * scratch.decay[r] + answer[r, c]


@device
def _finish(b: int, i0: int, rows: int, outputs: Any, scratch: Any) -> None:
    """Divide what a chunk of queries has gathered by its total weight."""
    answer, log_total, normal = outputs.answer, outputs.log_total, outputs.normal
    real = answer.dtype.type
    for r in range(rows):
        total = scratch.total[r]
        # A query that may look at nothing, or finds nothing: log_total -inf, and the answer 0,
        # unless what weighs 0 is not finite.
        if total == 0:
            for c in range(answer.shape[2]):
                answer[b, i0 + r, c] = real(scratch.running[r, c])
            log_total[b, i0 + r] = -np.inf
            normal[b, i0 + r, :] = 0
        else:
            # No maximum although there is a total: every allowed score is NaN.
            largest = np.float64(scratch.top[r]) if scratch.top[r] > -np.inf else 0.0
            log_total[b, i0 + r] = real(largest + math.log(total))
            # The backward pass takes e^(logit - maximum) / total, as here: the rounding of
            # logit - log_total would cost several digits where there are many keys.
            normal[b, i0 + r, 0] = real(largest)
            normal[b, i0 + r, 1] = real(1 / total)
            for c in range(answer.shape[2]):
                answer[b, i0 + r, c] = real(scratch.running[r, c] / total)


@device
def _clear_beyond_runs(masks: Any, b: int, i0: int, i1: int, m: int, kept: Any) -> None:
    """Runs may be shorter than the longest: nobody reads what is kept beyond, but it is given."""
    for i in range(i0, i1):
        first, last = interval(masks, b, i, m)
        kept[b, i, max(last - first, 0) :] = 0
