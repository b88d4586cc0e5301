"""What the backward driver takes beside what both drivers take, and the buffers it works in."""

from __future__ import annotations

from typing import Any, NamedTuple

from qkv.jit import device
from qkv.jit.builtins import in_lines
from qkv.jit.signature import Double1, Double2, Double4, Int1, Int2, Real1, Real2, Real3, Real4
from qkv.operators.fused.inputs import ROWS

OF_BIAS = 3  # the last row of a gradient's `entry`, after QUERY, KEY and VALUE


class Units(NamedTuple):
    """How the work is cut: batch entries in groups, and the keys in pieces."""

    order: Int1  # (batch,): the batch entries, group by group
    group_start: Int1  # (groups + 1,)
    piece: int  # keys in a piece
    pieces: int
    value_rows: bool  # whether the gradients of values are summed up as rows or as columns


class Upstream(NamedTuple):
    answer: Real3  # (batch, n, d_v)
    log_total: Real2  # (batch, n)


class Gradients(NamedTuple):
    """What is added up; `entry` (4, batch) leads to the entry of each operand.

    Those of query, key and value need not be 0 before.
    """

    query: Double4  # (pieces, …, n, d)
    key: Real3
    value: Real3
    parameter: Double2  # (units, parameters)
    bias: Real4  # (pieces or 1, …, n or 1, m or 1), or empty
    entry: Int2


class Tokens(NamedTuple):
    """A tile of keys and values, as rows and as columns; what is not needed is empty."""

    key_rows: Any  # (keys, depth)
    key_columns: Any  # (depth, width)
    value_rows: Any  # (keys, d_v)
    value_columns: Any  # (d_v, width)


class Sums(NamedTuple):
    """Where a tile's gradients are added up, as rows or as columns."""

    key: Any
    value: Any


class Scratch(NamedTuple):
    packed_query: Real2
    query_reach: Real1
    key_reach: Real1
    key_rows: Real2
    key_columns: Real2
    value_columns: Real2
    clean_key_rows: Real2
    clean_key_columns: Real2
    clean_value: Real2
    raw: Real2
    logits: Real2
    weights: Real2
    slopes: Real2
    bias_slopes: Real2
    block_query: Real2
    chunk_key: Real2
    chunk_value: Real2
    chunk_parameter: Real1
    total_key: Double2
    total_value: Double2
    total_bias: Double1


class Sizes(NamedTuple):
    """Of a tile: its keys, the columns of queries and keys, plain and packed, those of values,
    parameters, and the blocks of lines that the tile functions work in."""

    width: int
    query_d: int
    query_depth: int
    key_d: int
    key_depth: int
    value_depth: int
    parameters: int
    parts: int


def scratch_shapes(sizes: Sizes, key_rows: bool, value_rows: bool) -> Scratch:
    """The buffers of a thread; gradients are summed up as rows or as columns."""
    width, value_depth = sizes.width, sizes.value_depth
    rows, columns, block = (width, sizes.key_depth), (sizes.key_depth, width), (ROWS, width)
    key = (width, sizes.key_d) if key_rows else (sizes.key_d, width)
    value = (width, value_depth) if value_rows else (value_depth, width)
    return Scratch(
        packed_query=(ROWS, sizes.query_depth),
        query_reach=(1,),
        key_reach=(1,),
        key_rows=rows,
        key_columns=columns,
        value_columns=(value_depth, width),
        clean_key_rows=rows,
        clean_key_columns=columns,
        clean_value=(width, value_depth),
        raw=(sizes.parts * ROWS, width),
        logits=block,
        weights=block,
        slopes=block,
        bias_slopes=block,
        block_query=(ROWS, sizes.query_d),
        chunk_key=key,
        chunk_value=value,
        chunk_parameter=(sizes.parameters,),
        total_key=key,
        total_value=value,
        total_bias=(width,),
    )


@device
def narrowed(scratch: Any, width: int, functions: Any, units: Any) -> Any:
    """The buffers for a tile of so many lanes."""
    key_rows, value_rows = functions.differentiate_rows, units.value_rows
    chunk_key, total_key = scratch.chunk_key, scratch.total_key
    chunk_value, total_value = scratch.chunk_value, scratch.total_value
    return Scratch(
        scratch.packed_query,
        scratch.query_reach,
        scratch.key_reach,
        scratch.key_rows,
        in_lines(scratch.key_columns, width),
        in_lines(scratch.value_columns, width),
        scratch.clean_key_rows,
        in_lines(scratch.clean_key_columns, width),
        scratch.clean_value,
        in_lines(scratch.raw, width),
        in_lines(scratch.logits, width),
        in_lines(scratch.weights, width),
        in_lines(scratch.slopes, width),
        in_lines(scratch.bias_slopes, width),
        scratch.block_query,
        chunk_key[:width] if key_rows else in_lines(chunk_key, width),
        chunk_value[:width] if value_rows else in_lines(chunk_value, width),
        scratch.chunk_parameter,
        total_key[:width] if key_rows else in_lines(total_key, width),
        total_value[:width] if value_rows else in_lines(total_value, width),
        scratch.total_bias,
    )
