"""A table as a database of keys and values that can be asked softly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from qkv.table import bandwidth as bandwidths
from qkv.table.answer import Answer
from qkv.table.columns import Kind, entries, kind_of
from qkv.table.comparison import Comparison
from qkv.table.picture import picture
from qkv.table.plan import TablePlan
from qkv.table.reading import Progress, Reading, read
from qkv.table.similarity import (
    BandwidthLike,
    SimilarityLike,
    Wanted,
    compare,
    wanted_for,
)
from qkv.table.sources import Request, Scan, Source, open_source
from qkv.table.sources.base import Where
from qkv.table.where import Condition, both, check_column, parse


class Database:
    """Keys and values in a table: Attention(q, D) = Σᵢ α(q, kᵢ) vᵢ over its rows, exactly.

    `source` is anything that speaks Arrow (pandas, Polars, pyarrow, a DuckDB relation, an ADBC
    cursor) or a path: CSV, Parquet, a folder of them, ``.duckdb`` with `table=` or `sql=`, or
    ``postgresql://…`` with the same. Rows are streamed; memory does not grow with their number.

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
        value: str,
        table: str | None = None,
        sql: str | None = None,
    ) -> None:
        self._source = source if isinstance(source, Source) else open_source(source, table, sql)
        self.key = [key] if isinstance(key, str) else list(key)
        self.value = value
        if not self.key:
            raise ValueError("key must name at least one column")
        for name in self.key:
            self._check(name, "key")
        self._check(value, "value")
        self._chosen: dict[Any, tuple[dict[str, float], int]] = {}

    @property
    def schema(self) -> pa.Schema:
        """The columns of the table."""
        return self._source.schema

    def swap(self) -> Database:
        """The same table with keys and values exchanged: to find by what was found."""
        if len(self.key) != 1:
            raise ValueError(f"swap needs a single key column; got {', '.join(self.key)}")
        return Database(self._source, key=self.value, value=self.key[0])

    def query(
        self,
        q: Any,
        *,
        similarity: SimilarityLike = "equal",
        bandwidth: BandwidthLike = None,
        where: str | Condition | pc.Expression | None = None,
        top: int = 5,
        progress: Progress | None = None,
    ) -> Any:
        """The :class:`Answer` to a query, or a list of them to a list, in one pass.

        - A query is a key: a number, text, a date, a vector; for several key columns a tuple or a
          mapping of column to key.
        - `similarity` is a name, a :class:`qkv.Similarity`, or a mapping with one for each key
          column; they combine by product. ``"equal"`` is the hard look-up.
        - `bandwidth`, a number, a timedelta or a mapping, says how far kernels and ``"fuzzy"``
          look: in the column's own units, days for dates, seconds for other times. Kernels
          without one get the best by leave-one-out on a sample.
        - `where` keeps rows: a sentence such as ``"year >= 2020 and major = 'art'"``, or a
          :class:`pyarrow.compute.Expression`.
        - `top` is how many of the heaviest rows to show.
        - `progress` is told, after each batch, how many rows are read, and how many there are.
        """
        queries, many = self._queries(q)
        if not queries:
            return []
        comparisons, plan, scan = self._prepare(queries, similarity, bandwidth, where, top)
        reading = read(scan, comparisons, self.value, len(queries), top, progress)
        if reading.rows == 0 and where is None and plan.window is None:
            raise ValueError(f"the table ({self._source.description}) is empty")
        plan.rows_read, plan.rows_used, plan.missing = reading.rows, reading.used, reading.missing
        answers = self._answers(queries, comparisons, reading, plan, scan)
        return answers if many else answers[0]

    def explain(
        self,
        q: Any,
        *,
        similarity: SimilarityLike = "equal",
        bandwidth: BandwidthLike = None,
        where: str | Condition | pc.Expression | None = None,
        top: int = 5,
    ) -> TablePlan:
        """How :meth:`query` would ask the source, without asking it for rows."""
        queries, _ = self._queries(q)
        return self._prepare(queries, similarity, bandwidth, where, top)[1]

    def _check(self, name: str, argument: str) -> None:
        if not isinstance(name, str):
            raise TypeError(f"{argument} must name a column; got {name!r}")
        check_column(self.schema, name, argument)
        type = self.schema.field(name).type
        if pa.types.is_null(type):
            raise ValueError(f"{argument} column {name!r} holds nothing; is the table empty?")
        if kind_of(type) is Kind.OTHER:
            raise TypeError(f"{argument} column {name!r} ({type}) holds {Kind.OTHER.value}")

    def _queries(self, q: Any) -> tuple[list[dict[str, Any]], bool]:
        """Queries as mappings of key column to key, and whether there may be many."""
        if len(self.key) > 1:
            many = isinstance(q, list)
            return [self._by_column(one) for one in (q if many else [q])], many
        name = self.key[0]
        if isinstance(q, Mapping):
            return [self._by_column(q)], False
        if hasattr(q, "to_pylist"):
            q = q.to_pylist()
        listed = hasattr(q, "__len__") and not isinstance(q, str) and np.ndim(q) != 0
        if kind_of(self.schema.field(name).type) is Kind.VECTOR:
            listed = listed and len(q) > 0 and hasattr(q[0], "__len__")
        if listed and len(q) and isinstance(q[0], Mapping):
            return [self._by_column(one) for one in q], True
        return [{name: _python(one)} for one in q] if listed else [{name: _python(q)}], listed

    def _by_column(self, one: Any) -> dict[str, Any]:
        if isinstance(one, Mapping) and set(one) == set(self.key):
            return {name: _python(one[name]) for name in self.key}
        if isinstance(one, (tuple, list)) and len(one) == len(self.key):
            return dict(zip(self.key, map(_python, one), strict=True))
        raise ValueError(f"a query must have a key for each of {', '.join(self.key)}; got {one!r}")

    def _prepare(
        self,
        queries: list[dict[str, Any]],
        similarity: SimilarityLike,
        bandwidth: BandwidthLike,
        where: str | Condition | pc.Expression | None,
        top: int,
    ) -> tuple[list[Comparison], TablePlan, Scan]:
        if isinstance(top, bool) or not isinstance(top, int) or not 0 <= top <= 10_000:
            raise ValueError(f"top must be a number of rows from 0 to 10,000; got {top!r}")
        condition: Where = parse(where, self.schema) if isinstance(where, str) else where
        if condition is not None and not isinstance(condition, (Condition, pc.Expression)):
            raise TypeError(
                "where must be a sentence or a pyarrow.compute.Expression; "
                f"got {type(where).__name__}"
            )
        types = {name: self.schema.field(name).type for name in self.key}
        asked = {
            name: entries([one[name] for one in queries], types[name], name) for name in self.key
        }
        wanted = {name: wanted_for(name, types[name], similarity, bandwidth) for name in self.key}
        chosen, rows = self._choose(wanted, condition)
        for name, width in chosen.items():
            wanted[name] = wanted[name]._replace(bandwidth=width)
        comparisons = [compare(name, types[name], asked[name], wanted[name]) for name in self.key]
        window: Condition | None = None
        for own in comparisons:
            window = both(window, own.window())
        request = Request([*dict.fromkeys([*self.key, self.value])], top > 0, condition, window)
        scan = self._source.scan(request)
        by = f" (by leave-one-out on {rows:,} rows)"
        plan = TablePlan(
            source=self._source.description,
            columns=scan.columns,
            similarity={
                own.column: own.description + (by if own.column in chosen else "")
                for own in comparisons
            },
            where=None if condition is None else str(condition),
            window=None if window is None else str(window),
            notes=scan.notes,
        )
        if scan.groups is not None:
            plan.row_groups_read, plan.row_groups = scan.groups
        return comparisons, plan, scan

    def _choose(self, wanted: dict[str, Wanted], where: Where) -> tuple[dict[str, float], int]:
        """Bandwidths for the columns that lack one, and how many rows told them.

        They are chosen once for each kind of question.
        """
        if not any(own.lacks_bandwidth for own in wanted.values()):
            return {}, 0
        question = (tuple(wanted.items()), str(where))
        if question not in self._chosen:
            columns = [*dict.fromkeys([*self.key, self.value])]
            rows = bandwidths.sample(self._source, columns, where)
            self._chosen[question] = bandwidths.choose(rows, wanted, self.value), len(rows)
        return self._chosen[question]

    def _answers(
        self,
        queries: list[dict[str, Any]],
        comparisons: list[Comparison],
        reading: Reading,
        plan: TablePlan,
        scan: Scan,
    ) -> list[Answer]:
        sums, leaders = reading.partial, reading.leaders
        rows = leaders.shown(scan)
        effective = sums.effective_rows
        numeric = kind_of(self.schema.field(self.value).type) in (Kind.NUMBER, Kind.VECTOR)
        drawn = reading.sample.batches
        answers = []
        for number, one in enumerate(queries):
            total = float(sums.total[number])
            value = std = None
            distribution: dict[Any, float] = {}
            if total > 0.0 and numeric:
                deviation = np.sqrt(sums.spread[number] / total)
                value, std = _number(sums.mean[number]), _number(deviation)
            elif total > 0.0:
                distribution = _distribution(sums.values, sums.mass[number] / total)
                value = next(iter(distribution))
            best = []
            for row, log in zip(leaders.rows[number], leaders.logs[number], strict=True):
                weight = float(np.exp(log - sums.peak[number]) / total) if row >= 0 else 0.0
                if weight > 0.0:
                    best.append({_weight_name(self.schema): weight, **rows[int(row)]})
            draw = partial(picture, drawn, comparisons, number, self.value, one, value, std)
            answers.append(
                Answer(
                    query=one,
                    column=self.value,
                    value=value,
                    std=std,
                    distribution=distribution,
                    effective_rows=float(effective[number]),
                    rows=best,
                    plan=plan,
                    _picture=draw,
                )
            )
        return answers


def _distribution(values: list[Any], weights: np.ndarray) -> dict[Any, float]:
    """Values with any weight, the heaviest first."""
    order = np.argsort(-weights, kind="stable")
    return {values[place]: float(weights[place]) for place in order if weights[place] > 0.0}


def _number(numbers: np.ndarray) -> float | list[float]:
    return float(numbers[0]) if len(numbers) == 1 else numbers.tolist()


def _weight_name(schema: pa.Schema) -> str:
    """`weight`, unless the table has a column of that name."""
    name = "weight"
    while name in schema.names:
        name += "_"
    return name


def _python(entry: Any) -> Any:
    """A key as Python has it."""
    if isinstance(entry, pa.Scalar):
        return entry.as_py()
    if isinstance(entry, np.ndarray):
        return entry.tolist()
    return entry.item() if isinstance(entry, np.generic) and entry.dtype.kind != "M" else entry
