"""A table as a database of keys and values for soft queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from qkv.table.aggregation import ProgressCallback
from qkv.table.assembling import Assembly
from qkv.table.columns import Kind, entries, kind_of
from qkv.table.curve import assemble as assemble_curve
from qkv.table.index import Index
from qkv.table.join import soft_join
from qkv.table.join.on import OnLike
from qkv.table.plan import TablePlan
from qkv.table.queries import listed
from qkv.table.query_runner import QueryOptions, QueryRunner
from qkv.table.row_weights import DecayLike
from qkv.table.similarity_spec import BandwidthLike, CutoffLike, SimilarityLike
from qkv.table.sources import Source, open_source
from qkv.table.where import WhereLike, check_column


class Database:
    """Keys and values in a table: Attention(q, D) = Σᵢ α(q, kᵢ) vᵢ over its rows, exactly.

    `source` is anything that speaks Arrow (pandas, Polars, pyarrow, a DuckDB relation, an ADBC
    cursor) or a path: CSV, Parquet, a folder of them, ``.duckdb`` with `table=` or `sql=`, or
    ``postgresql://…`` with the same. Rows are streamed; memory does not grow with their number.
    The format of a CSV file is detected and shown in the plan, or given in `csv`: delimiter, quote,
    encoding, decimal, thousands, and types, a mapping of columns to text, number, date and so on.
    `value` may name several columns, which are then answered together.

    >>> import pyarrow as pa, qkv
    >>> majors = pa.table({"name": ["Ana", "John", "Mei"], "major": ["physics", "art", "physics"]})
    >>> students = qkv.Database(majors, key="name", value="major")
    >>> students.query("John").value
    'art'
    >>> students.query("Jon", similarity="fuzzy").value
    'art'
    >>> students.query("Zoe").value is None
    True
    >>> students.swap().query("physics").distribution
    {'Ana': 0.5, 'Mei': 0.5}
    """

    def __init__(
        self,
        source: Any,
        *,
        key: str | Sequence[str],
        value: str | Sequence[str],
        table: str | None = None,
        sql: str | None = None,
        csv: Mapping[str, Any] | None = None,
    ) -> None:
        for argument, names in (("key", key), ("value", value)):
            if not isinstance(names, Sequence):
                raise TypeError(f"{argument} must name a column, or several; got {names!r}")
        self.key = [key] if isinstance(key, str) else list(key)
        self.value = value if isinstance(value, str) else list(value)
        needed = [name for name in (*self.key, *self.values) if isinstance(name, str)]
        self._open = partial(_opened, source, table, sql, csv, needed)
        self._source = self._open()
        if not self.key:
            raise ValueError("key must name at least one column")
        if not self.values:
            raise ValueError("value must name at least one column")
        for name in self.key:
            self._check(name, "key")
        for name in self.values:
            self._check(name, "value")
        if len(set(self.values)) < len(self.values):
            raise ValueError(f"value must name each column once; got {self.value}")
        self._runner = QueryRunner(self._source, self.key, self.values)

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return self._source.schema

    @property
    def values(self) -> list[str]:
        """The value columns."""
        return [self.value] if isinstance(self.value, str) else self.value

    def swap(self) -> Database:
        """The same table with keys and values exchanged, for the reverse look-up."""
        if len(self.key) != 1:
            raise ValueError(f"swap needs a single key column; got {', '.join(self.key)}")
        if len(self.values) != 1:
            raise ValueError(f"swap needs a single value column; got {', '.join(self.values)}")
        return Database(self._source, key=self.values[0], value=self.key[0])

    def indexed(
        self, path: str | Path | None = None, *, progress: ProgressCallback | None = None
    ) -> Database:
        """The same database with its rows sorted by key: later queries read only the blocks that
        matter, and give the same answers.

        The table is read into memory once. With a `path`, the index is stored there, as Arrow IPC,
        for later processes, which map it into memory. It is rebuilt if the size or modification
        time of a file has changed since.
        """
        path = None if path is None else Path(path)
        if path is not None and path.suffix.lower() not in (".arrow", ".feather"):
            raise ValueError(f"an index's name must end in .arrow or .feather; got {path.name!r}")
        index = Index(self._open, self.key, path, progress)
        return Database(index, key=self.key, value=self.value)

    def query(
        self,
        q: Any,
        *,
        similarity: SimilarityLike = "equal",
        bandwidth: BandwidthLike = None,
        cutoff: CutoffLike = None,
        where: WhereLike = None,
        by: str | Sequence[str] | None = None,
        weight: str | None = None,
        decay: DecayLike | None = None,
        top: int | None = None,
        progress: ProgressCallback | None = None,
        client: Any = None,
    ) -> Any:
        """The :class:`Answer` to a query, or a list of them to a list, in one pass.

        - A query is a key: a number, text, a date, a vector; for several key columns a tuple or a
          mapping of column to key.
        - `similarity` is a name, a :class:`qkv.Similarity`, a function in torch of the distance in
          bandwidths, or a mapping with one for each key column; they combine by product.
          ``"equal"`` is the hard look-up.
        - `bandwidth`, a number, a timedelta or a mapping, is the width of kernels and ``"fuzzy"``:
          in the column's own units, days for dates, seconds for other times. Kernels
          without one get the best by leave-one-out on a sample, for the first value column.
        - `cutoff`, 0.6 by default, is the ratio of texts below which ``"fuzzy"`` gives no weight.
        - `where` keeps rows: a sentence such as ``"year >= 2020 and major = 'art'"``, or a
          :class:`pyarrow.compute.Expression`.
        - `by` names a column, or several: each query then gets a :class:`GroupAnswers`, with an
          answer for each group of rows.
        - `weight` names a column of numbers, such as counts, by which rows are multiplied.
        - `decay` is a column and a half-life, such as ``("date", "90d")``: rows weigh half as much
          for each half-life before the newest. A third entry is a reference date: later rows weigh
          nothing.
        - `top` is how many of the heaviest rows to show: 5, or none of each group, unless given.
        - `progress` is called after each batch with the number of rows read, and their total.
        - `client`, a :class:`dask.distributed.Client`, has its workers read the table, each some
          parts of it; see docs/scale.md. The answer is the same.
        """
        queries, many = listed(q, self.key, self.schema)
        if not queries:
            return []
        terms = QueryOptions(similarity, bandwidth, cutoff, where, by, weight, decay, top)
        prepared = self._runner.prepare(queries, terms, client)
        assembly = Assembly(
            self._runner.read(prepared, progress, client),
            queries,
            prepared.question.comparisons,
            prepared.weights,
            prepared.plan,
            prepared.scan,
            self.schema,
        )
        answers = assembly.answers(prepared.by, not isinstance(self.value, str))
        return answers if many else answers[0]

    def curve(
        self,
        grid: Any,
        *,
        similarity: SimilarityLike = "gaussian",
        bandwidth: BandwidthLike = None,
        where: WhereLike = None,
        by: str | Sequence[str] | None = None,
        weight: str | None = None,
        decay: DecayLike | None = None,
        progress: ProgressCallback | None = None,
    ) -> Any:
        """The :class:`Curve` of answers along a grid of keys, in one pass.

        The other arguments are those of :meth:`query`. With `by`, or several value columns, a
        mapping of these to curves.
        """
        if len(self.key) > 1:
            raise ValueError(f"a curve needs a single key column; got {', '.join(self.key)}")
        for name in self.values:
            if kind_of(self.schema.field(name).type) is not Kind.NUMBER:
                raise TypeError(
                    f"a curve needs values that are numbers; column {name!r} holds "
                    f"{kind_of(self.schema.field(name).type).value}"
                )
        queries, many = listed(grid, self.key, self.schema)
        if not many or not queries:
            raise ValueError(f"grid must be a sequence of keys, one or more; got {grid!r}")
        terms = QueryOptions(similarity, bandwidth, None, where, by, weight, decay, top=0)
        prepared = self._runner.prepare(queries, terms)
        reading = self._runner.read(prepared, progress)
        points = entries(
            [one[self.key[0]] for one in queries], self.schema.field(self.key[0]).type, self.key[0]
        )
        return assemble_curve(
            reading, self.key[0], points, prepared.plan, isinstance(self.value, str)
        )

    def soft_join(
        self,
        right: Any,
        *,
        on: OnLike,
        take: str | Sequence[str] | None = None,
        top: int | None = 1,
        cutoff: CutoffLike = None,
        bandwidth: BandwidthLike = None,
        where: WhereLike = None,
        where_left: WhereLike = None,
        progress: ProgressCallback | None = None,
    ) -> pa.Table:
        """This table joined softly with another; see :func:`qkv.table.soft_join`.

        `right` is any source, or a database, whose value is taken if `take` names nothing.
        """
        if isinstance(right, Database):
            right, take = right._source, right.value if take is None else take
        return soft_join(
            self._source,
            right,
            on=on,
            take=take,
            top=top,
            cutoff=cutoff,
            bandwidth=bandwidth,
            where=where,
            where_left=where_left,
            progress=progress,
        )

    def explain(
        self,
        q: Any,
        *,
        similarity: SimilarityLike = "equal",
        bandwidth: BandwidthLike = None,
        cutoff: CutoffLike = None,
        where: WhereLike = None,
        by: str | Sequence[str] | None = None,
        weight: str | None = None,
        decay: DecayLike | None = None,
        top: int | None = None,
        client: Any = None,
    ) -> TablePlan:
        """How :meth:`query` would read the source, without reading any rows."""
        queries, _ = listed(q, self.key, self.schema)
        terms = QueryOptions(similarity, bandwidth, cutoff, where, by, weight, decay, top)
        return self._runner.prepare(queries, terms, client).plan

    def _check(self, name: str, argument: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"{argument} must name a column; got {name!r}")
        if name in self._source.repeated:
            new = self._source.repeated[name]
            raise ValueError(
                f"{argument} names column {name!r}, of which there are {len(new)}: here they are "
                f"called {', '.join(new)}"
            )
        check_column(self.schema, name, argument)
        type = self.schema.field(name).type
        if pa.types.is_null(type):
            raise ValueError(f"{argument} column {name!r} holds nothing; is the table empty?")
        if kind_of(type) is Kind.OTHER:
            raise TypeError(f"{argument} column {name!r} ({type}) holds {Kind.OTHER.value}")


def _opened(
    source: Any,
    table: str | None,
    sql: str | None,
    csv: Mapping[str, Any] | None,
    needed: list[str],
) -> Source:
    opened = isinstance(source, Source)
    return source if opened else open_source(source, table, sql, csv, needed)
