"""Answers to the rows of a table too large for memory, batch by batch, in Arrow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from qkv.optional_dependencies import require

ROWS = 2**16


def batches(source: Any, columns: list[str] | None) -> Iterator[Any]:
    """The rows of a Parquet file or folder, or of anything that speaks Arrow, in batches."""
    arrow = require("pyarrow", "table")
    if isinstance(source, (str, os.PathLike)):
        path = Path(source)
        if not path.exists():
            raise ValueError(f"there is no file {str(path)!r}")
        dataset = require("pyarrow.dataset", "table").dataset(path, format="parquet")
        _check(dataset.schema.names, columns)
        yield from dataset.to_batches(batch_size=ROWS)
        return
    if hasattr(source, "to_batches"):  # a table or a dataset
        _check(source.schema.names, columns)
        for batch in source.to_batches():
            for start in range(0, len(batch), ROWS):
                yield batch.slice(start, ROWS)
        return
    if not hasattr(source, "__arrow_c_stream__"):
        raise TypeError(
            "source must be the path of a Parquet file or something that speaks Arrow; "
            f"got {type(source).__name__}"
        )
    reader = arrow.RecordBatchReader.from_stream(source)
    _check(reader.schema.names, columns)
    yield from reader


def _check(names: list[str], columns: list[str] | None) -> None:
    for column in columns or []:
        if column not in names:
            raise ValueError(f"the rows must have the column {column!r}; got {', '.join(names)}")


def as_table(batch: Any) -> Any:
    """A batch as a table, whose column names scikit-learn can read."""
    return require("pyarrow", "table").Table.from_batches([batch])


def with_answers(batch: Any, answers: dict[str, np.ndarray]) -> Any:
    """The rows of a batch with their answers as further columns, under unused names."""
    arrow = require("pyarrow", "table")
    names, arrays = list(batch.schema.names), list(batch.columns)
    for name, answer in answers.items():
        while name in names:
            name += "_"
        names.append(name)
        if answer.ndim > 1:  # several outputs
            flat = arrow.array(np.ascontiguousarray(answer).ravel())
            arrays.append(arrow.FixedSizeListArray.from_arrays(flat, answer.shape[1]))
        else:
            arrays.append(arrow.array(np.ascontiguousarray(answer)))
    return arrow.RecordBatch.from_arrays(arrays, names=names)
