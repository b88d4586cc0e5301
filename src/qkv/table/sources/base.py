"""The interface of every source: its columns, and scans of its rows in Arrow batches."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from qkv.table.where import Condition, Dialect, both, both_zeros, build

if TYPE_CHECKING:
    from qkv.table.comparison import Comparison

#: Rows of a part, about: enough that reading outweighs the scheduler's work.
PART_ROWS = 2**20
#: Parts of a source, at most.
MOST_PARTS = 10_000
#: Rows in a batch, at most: what Arrow's own readers take.
BATCH_ROWS = 2**17

Where: TypeAlias = Condition | pc.Expression | None


def _literal(value: Any) -> pa.Scalar:
    is_wide = isinstance(value, int) and value >= 2**63
    return pa.scalar(value, pa.uint64()) if is_wide else pa.scalar(value)


def _one_of(column: pc.Expression, values: list[Any]) -> pc.Expression:
    # For null, Arrow's isin says no and SQL does not know; the first comparison puts that right.
    is_wide = any(isinstance(value, int) and value >= 2**63 for value in values)
    among = pa.array(both_zeros(values), pa.uint64() if is_wide else None)
    return (column == among[0]) | column.isin(among)


_ARROW = Dialect(
    column=pc.field,
    value=_literal,
    one_of=_one_of,
    missing=lambda column: column.is_null(),
)


class Request(NamedTuple):
    """What a scan must deliver."""

    columns: list[str]  # keys and values
    whole_rows: bool  # whether some rows will be shown with all their columns
    where: Where = None  # what rows must fulfil
    window: Condition | None = None  # rows outside have no weight: a source may skip them
    by: tuple[str, ...] = ()  # columns that make groups: a source may give them as categories
    weighted: bool = False  # whether rows weigh anything by themselves
    comparisons: tuple[Comparison, ...] = ()  # how keys will be compared, for an index
    queries: int = 1  # with so many queries

    @property
    def unused_window(self) -> list[str]:
        """The note of a source that cannot skip rows outside of a window."""
        return ["rows outside the window are read, and weigh nothing"] if self.window else []

    def split(self) -> tuple[Condition | None, pc.Expression | None]:
        """What a database is asked to fulfil, and what only Arrow can judge, after the reading."""
        if isinstance(self.where, pc.Expression):
            return self.window, self.where
        return both(self.where, self.window), None


class Scan:
    """One scan of a source; `notes` describes it before it starts."""

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
        self.complete: frozenset[str] = frozenset()  # columns known to lack nothing
        self.missing: dict[str, int] = {}  # rows that were left out before, for what they lack
        self.window: Condition | None = None  # outside of which no row weighs anything

    def batches(self) -> Iterator[pa.RecordBatch]:
        """The rows that fulfil `where`, in batches of bounded size."""
        for batch in self._batches:
            for start in range(0, len(batch), BATCH_ROWS):
                yield batch.slice(start, BATCH_ROWS)

    def keep(self, batch: pa.RecordBatch, rows: list[int]) -> list[Any]:
        """Something by which :meth:`fetch` finds these rows of the batch just read."""
        return as_python(batch.take(pa.array(rows, pa.int64())))

    def fetch(self, places: list[Any]) -> list[dict[str, Any]]:
        """The rows that were kept, with all their columns."""
        return places


class Part(NamedTuple):
    """Some rows of a source, to be read by another process."""

    source: Any  # a Source, or a Dask delayed object that becomes one
    name: str  # for errors
    rows: int | None = None  # how many to expect, where that is known


class Source(ABC):
    """A table somewhere."""

    #: What this is, for people.
    description: str
    schema: pa.Schema
    #: Whether one reading uses it up.
    once = False
    #: The files it is read from, where it is.
    files: Sequence[str] = ()
    #: What was assumed when it was opened.
    notes: list[str] = []  # noqa: RUF012 - replaced, never changed
    #: Names that several columns had, and what these are called here.
    repeated: dict[str, list[str]] = {}  # noqa: RUF012

    @property
    def original(self) -> Source:
        """What an index was made of, or this source itself."""
        return self

    @abstractmethod
    def scan(self, request: Request) -> Scan:
        """Begin a reading."""

    def parts(self, request: Request) -> list[Part] | None:
        """This source in parts that other processes can read, which together hold every row that
        the request is for; None where it cannot leave this process."""
        return None

    def columns_for(self, request: Request) -> list[str]:
        """The columns that must be read."""
        return list(self.schema.names) if request.whole_rows else request.columns


def numbered(names: list[str]) -> tuple[list[str], dict[str, list[str]]]:
    """Names of columns, each once: repeated ones get numbers, and are returned as a mapping."""
    count = Counter(names)
    repeated: dict[str, list[str]] = {name: [] for name, times in count.items() if times > 1}
    unique = []
    for name in names:
        new, number = name, len(repeated.get(name, []))
        while name in repeated and (new in count or new in unique):
            number += 1
            new = f"{name}_{number}"
        unique.append(new)
        if name in repeated:
            repeated[name].append(new)
    return unique, repeated


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
    """Filter the batches of a source that has no pushdown."""
    expression = arrow_filter(where)
    for batch in batches:
        plain = _without_views(batch)
        chosen = plain if expression is None else plain.filter(expression)
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
