"""What a figure of an answer needs: keys, their values and weights, and the answer."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from qkv.table.columns import Kind, kind_of, numbers, plain
from qkv.table.comparison import Comparison


class Picture(NamedTuple):
    """Some rows of the table, the query and the answer."""

    keys: np.ndarray | list[str]  # numbers, times, or labels
    values: np.ndarray | list[str]
    weights: np.ndarray  # relative to the largest
    query: Any
    answer: Any
    spread: float | None
    key_name: str
    value_name: str


def picture(
    batches: list[pa.RecordBatch],
    comparisons: list[Comparison],
    number: int,
    value_name: str,
    query: dict[str, Any],
    answer: Any,
    spread: Any,
) -> Picture:
    """How much each of these rows weighs in the answer to query `number`."""
    names = [*dict.fromkeys([*(own.column for own in comparisons), value_name])]
    rows = pa.Table.from_batches(batches) if batches else pa.table({name: [] for name in names})
    rows = rows.combine_chunks()
    arrays = {name: plain(_one(rows.column(name))) for name in rows.column_names}
    logs = np.zeros(len(rows))
    for own in comparisons:
        logs = logs + own.logs(arrays[own.column])[number]
    peak = logs.max(initial=-np.inf)
    weights = np.exp(logs - peak) if np.isfinite(peak) else np.zeros(len(rows))
    key_name = comparisons[0].column
    return Picture(
        keys=_axis(arrays[key_name]),
        values=_axis(arrays[value_name]),
        weights=weights,
        query=query[key_name],
        answer=answer,
        spread=spread if isinstance(spread, float) else None,
        key_name=", ".join(own.column for own in comparisons),
        value_name=value_name,
    )


def _one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks else pa.array([], column.type)


def _axis(array: pa.Array) -> np.ndarray | list[str]:
    kind = kind_of(array.type)
    if kind is Kind.NUMBER:
        return numbers(array)
    if kind is Kind.TIME and not pa.types.is_time(array.type):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    return [str(entry) for entry in array.to_pylist()]
