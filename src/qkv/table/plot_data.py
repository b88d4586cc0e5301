"""What a figure of an answer needs: keys, their values and weights, and the answer."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from qkv.table.aggregation import complete
from qkv.table.columns import Kind, kind_of, numbers, plain
from qkv.table.comparison import Comparison
from qkv.table.row_weights import RowWeights


class PlotData(NamedTuple):
    """Some rows of the table, the query and the answer."""

    keys: np.ndarray | list[str]  # numbers, times, or labels
    values: np.ndarray | list[str]
    weights: np.ndarray  # relative to the largest
    query: Any
    answer: Any
    spread: float | None
    key_name: str
    value_name: str


class PlottedAnswer(NamedTuple):
    """Which answer is drawn."""

    comparisons: list[Comparison]
    weights: RowWeights
    number: int  # of the query
    value: str
    group: dict[str, Any]  # what the rows have in common, by column


def picture(
    batches: list[pa.RecordBatch],
    drawn: PlottedAnswer,
    query: dict[str, Any],
    answer: Any,
    spread: Any,
) -> PlotData:
    """How much each of these rows weighs in an answer."""
    keys = [comparison.column for comparison in drawn.comparisons]
    names = [*dict.fromkeys([*keys, *drawn.group, *drawn.weights.columns, drawn.value])]
    rows = _rows(batches, names, drawn.group)
    arrays = {name: plain(rows.column(name)) for name in names}
    logs = np.zeros(len(rows))
    for comparison in drawn.comparisons if len(rows) else []:
        logs = logs + comparison.logs(arrays[comparison.column])[drawn.number]
    if len(rows) and drawn.weights.columns:
        logs = logs + drawn.weights.logs(rows)[0]
    peak = logs.max(initial=-np.inf)
    weights = np.exp(logs - peak) if np.isfinite(peak) else np.zeros(len(rows))
    return PlotData(
        keys=_axis(arrays[keys[0]]),
        values=_axis(arrays[drawn.value]),
        weights=weights,
        query=query[keys[0]],
        answer=answer,
        spread=spread if isinstance(spread, float) else None,
        key_name=", ".join(keys),
        value_name=drawn.value,
    )


def _rows(batches: list[pa.RecordBatch], names: list[str], group: dict[str, Any]) -> pa.RecordBatch:
    """The rows of a group that lack none of these columns, in one batch."""
    table = pa.Table.from_batches(batches) if batches else pa.table({name: [] for name in names})
    batch = pa.RecordBatch.from_arrays([_one(table.column(name)) for name in names], names)
    rows, _ = complete(batch, dict.fromkeys(names, 0))
    for name, label in group.items():
        rows = rows.filter(pc.equal(plain(rows.column(name)), label))
    return rows


def _one(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return combined.combine_chunks() if isinstance(combined, pa.ChunkedArray) else combined


def _axis(array: pa.Array) -> np.ndarray | list[str]:
    kind = kind_of(array.type)
    if kind is Kind.NUMBER:
        return numbers(array)
    if kind is Kind.TIME and not pa.types.is_time(array.type):
        return np.asarray(array.to_numpy(zero_copy_only=False))
    return [str(entry) for entry in array.to_pylist()]
