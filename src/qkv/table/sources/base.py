"""What every source offers: its columns, and readings of its rows in Arrow batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from qkv.table.where import Condition, Dialect, both, build

#: Rows in a batch, at most: what Arrow's own readers take.
BATCH_ROWS = 2**17

Where: TypeAlias = Condition | pc.Expression | None

_ARROW = Dialect(
    column=pc.field,
    value=pa.scalar,
    # For null, Arrow's isin says no and SQL does not know; the first comparison puts that right.
    one_of=lambda column, values: (column == values[0]) | column.isin(values),
    missing=lambda column: column.is_null(),
)


class Request(NamedTuple):
    """What a reading is wanted for."""

    columns: list[str]  # keys and values
    whole_rows: bool  # whether some rows will be shown with all their columns
    where: Where = None  # what rows must fulfil
    window: Condition | None = None  # rows outside have no weight: a source may skip them

    @property
    def unused_window(self) -> list[str]:
        """What a source that cannot skip rows has to say of a window."""
        return ["rows outside the window are read, and weigh nothing"] if self.window else []

    def split(self) -> tuple[Condition | None, pc.Expression | None]:
        """What a database is asked to fulfil, and what only Arrow can judge, after the reading."""
        if isinstance(self.where, pc.Expression):
            return self.window, self.where
        return both(self.where, self.window), None


class Scan:
    """One reading. What can be told of it before it starts stands in `notes`."""

    def __init__(
        self,
        batches: Iterable[pa.RecordBatch],
        columns: list[str],
        notes: list[str],
        rows: int | None = None,
    ) -> None:
        self._batches = batches
        self.columns = columns  # that are read
        self.notes = notes
        self.rows = rows  # how many to expect, where that is known
        self.groups: tuple[int, int] | None = None  # row groups to read, and there are

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows that fulfil `where`, in batches of bounded size."""
        for batch in self._batches:
            for start in range(0, len(batch), BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)

    def keep(self, batch: pa.RecordBatch, rows: list[int]) -> list[Any]:
        """Something by which :meth:`fetch` finds these rows of the batch just read."""
        return as_python(batch.take(pa.array(rows, pa.int64())))

    def fetch(self, kept: list[Any]) -> list[dict[str, Any]]:
        """The rows that were kept, with all their columns."""
        return kept


class Source(ABC):
    """A table somewhere."""

    #: What this is, for people.
    description: str
    schema: pa.Schema
    #: Whether one reading uses it up.
    once = False

    @abstractmethod
    def scan(self, request: Request) -> Scan:
        """Begin a reading."""

    def columns_for(self, request: Request) -> list[str]:
        """The columns that must be read."""
        return list(self.schema.names) if request.whole_rows else request.columns


def arrow_filter(where: Where) -> pc.Expression | None:
    """A condition as Arrow evaluates it."""
    if where is None or isinstance(where, pc.Expression):
        return where
    return build(where, _ARROW)


def as_python(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """Rows as Python has them; nanoseconds, which it lacks, are cut to microseconds."""
    for index, field in enumerate(batch.schema):
        if pa.types.is_timestamp(field.type) and field.type.unit == "ns":
            column = batch.column(index).cast(pa.timestamp("us", field.type.tz), safe=False)
            batch = batch.set_column(index, field.name, column)
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def filtered(
    batches: Iterable[pa.RecordBatch], columns: list[str], where: Where
) -> Iterator[pa.RecordBatch]:
    """Batches of a source that selects nothing by itself."""
    expression = arrow_filter(where)
    for batch in batches:
        whole = _without_views(batch)
        chosen = whole if expression is None else whole.filter(expression)
        yield chosen.select(columns)


def _without_views(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Text as Arrow's functions take it: few of them know string views."""
    for index, field in enumerate(batch.schema):
        column = batch.column(index)
        if pa.types.is_dictionary(field.type) and pa.types.is_string_view(field.type.value_type):
            texts = column.dictionary.cast(pa.large_string())
            column = pa.DictionaryArray.from_arrays(column.indices, texts)
            batch = batch.set_column(index, field.name, column)
        elif pa.types.is_string_view(field.type):
            batch = batch.set_column(index, field.name, column.cast(pa.large_string()))
    return batch
