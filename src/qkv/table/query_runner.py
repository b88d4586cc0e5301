"""Queries to a table: checked, planned and run on its source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from qkv.cluster.jobs import worker_count
from qkv.table import bandwidth as bandwidths
from qkv.table.aggregation import ProgressCallback, Reading, read
from qkv.table.block import Question
from qkv.table.columns import entries
from qkv.table.groups import check_groups
from qkv.table.parts import Job, read_parts, sample_parts
from qkv.table.plan import TablePlan
from qkv.table.row_weights import DecayLike, RowWeights
from qkv.table.similarity_spec import (
    BandwidthLike,
    CutoffLike,
    SimilarityLike,
    SimilaritySpec,
    compare,
    read_spec,
)
from qkv.table.sources import Part, Request, Scan, Source
from qkv.table.sources.base import Where
from qkv.table.where import Condition, WhereLike, both, condition_of

#: The note about a bandwidth for which the sample is too small.
_UNKNOWN = " (a default: leave-one-out needs two rows or more)"


class QueryOptions(NamedTuple):
    """The options of a query, as in :meth:`qkv.Database.query`."""

    similarity: SimilarityLike = "equal"
    bandwidth: BandwidthLike = None
    cutoff: CutoffLike = None
    where: WhereLike = None
    by: str | Sequence[str] | None = None
    weight: str | None = None
    decay: DecayLike | None = None
    top: int | None = None


class PreparedQuery(NamedTuple):
    """A query, checked and ready to be run on the source."""

    question: Question
    by: list[str]
    weights: RowWeights
    plan: TablePlan
    scan: Scan
    request: Request
    parts: list[Part] | None  # that workers read; None: this process reads everything


class QueryRunner:
    """Runs queries on a source; remembers the bandwidths that it chose for them."""

    def __init__(self, source: Source, key: list[str], values: list[str]) -> None:
        self._source = source
        self._key = key
        self._values = values
        self._chosen: dict[Any, tuple[dict[str, float], int]] = {}

    def prepare(
        self, queries: list[dict[str, Any]], terms: QueryOptions, client: Any = None
    ) -> PreparedQuery:
        """Check the query, and start a scan that answers it.

        With a Dask client its workers will read the parts of the source, where it has any.
        """
        schema = self._source.schema
        top = _checked_top(terms.top, terms.by)
        condition = condition_of(terms.where, schema)
        groups = check_groups(terms.by, schema)
        weights = RowWeights(schema, terms.weight, terms.decay)
        types = {name: schema.field(name).type for name in self._key}
        keys = {n: entries([one[n] for one in queries], types[n], n) for n in self._key}
        specs = {
            name: read_spec(name, types[name], terms.similarity, terms.bandwidth, terms.cutoff)
            for name in self._key
        }
        chosen, rows = self._choose_bandwidths(specs, condition, client)
        for name, width in chosen.items():
            specs[name] = specs[name]._replace(bandwidth=width)
        comparisons = [compare(name, types[name], keys[name], specs[name]) for name in self._key]
        window: Condition | None = None
        for comparison in comparisons:
            window = both(window, comparison.window())
        columns = [*dict.fromkeys([*self._key, *self._values, *groups, *weights.columns])]
        request = Request(
            columns,
            top > 0,
            condition,
            window,
            tuple(groups),
            bool(weights.columns),
            tuple(comparisons),
            len(queries),
        )
        scan = self._source.scan(request)
        scan.window = window
        origin = f" (by leave-one-out on {rows:,} rows)" if rows > 1 else _UNKNOWN
        plan = TablePlan(
            source=self._source.description,
            columns=scan.columns,
            similarity={
                comparison.column: comparison.description
                + (origin if comparison.column in chosen else "")
                for comparison in comparisons
            },
            where=None if condition is None else str(condition),
            window=None if window is None else str(window),
            by=groups,
            weights=weights.description,
            notes=[*self._source.notes, *scan.notes],
        )
        if scan.groups is not None:
            plan.row_groups_read, plan.row_groups = scan.groups
        question = Question(comparisons, len(queries), top)
        parts = None
        if client is not None:
            parts = self._source.parts(request)
            plan.notes.append(_shared_out(self._source, parts, client))
        return PreparedQuery(question, groups, weights, plan, scan, request, parts)

    def read(
        self, prepared: PreparedQuery, progress: ProgressCallback | None, client: Any = None
    ) -> Reading:
        """Weigh the rows."""
        reading: Reading
        if prepared.parts:
            # Only an index asks how keys will be compared, and it has no parts.
            request = prepared.request._replace(comparisons=())
            job = Job(request, prepared.question, self._values, prepared.by, prepared.weights)
            reading = read_parts(client, prepared.parts, job, progress)
        else:
            reading = read(
                prepared.scan,
                prepared.question,
                self._values,
                prepared.by,
                prepared.weights,
                progress,
            )
        if reading.rows == 0 and prepared.plan.where is None and self._is_empty(prepared.scan):
            raise ValueError(f"the table ({self._source.description}) is empty")
        prepared.plan.rows_read = reading.rows
        return reading

    def _is_empty(self, scan: Scan) -> bool:
        """Whether a reading that gave no rows had any to give."""
        original = self._source.original  # an index leaves out rows that lack a key
        if original.once:
            return not any(scan.missing.values())
        if scan.window is None and original is self._source:
            return True
        everything = original.scan(Request(self._key[:1], whole_rows=False)).batches()
        return not any(len(batch) for batch in everything)

    def _choose_bandwidths(
        self, specs: dict[str, SimilaritySpec], where: Where, client: Any = None
    ) -> tuple[dict[str, float], int]:
        """Bandwidths for the columns that lack one, and on how many rows they are based.

        They are chosen once for each kind of question.
        """
        if not any(spec.lacks_bandwidth for spec in specs.values()):
            return {}, 0
        question = (tuple(specs.items()), str(where))
        if question not in self._chosen:
            first = self._values[0]
            columns = [*dict.fromkeys([*self._key, first])]
            request = bandwidths.sample_request(self._source.original, columns, where)
            parts = None if client is None else self._source.original.parts(request)
            rows = (
                sample_parts(client, parts, request)
                if parts
                else bandwidths.draw(self._source.original, request).rows
            )
            self._chosen[question] = bandwidths.choose(rows, specs, first), len(rows)
        return self._chosen[question]


def _shared_out(source: Source, parts: list[Part] | None, client: Any) -> str:
    """Who reads what, for the plan."""
    if parts is None:
        return f"{source.description} cannot be split: one part, read by this process"
    count, workers = len(parts), worker_count(client)
    return (
        f"{count:,} part{'s' if count != 1 else ''}, read by {workers:,} "
        f"worker{'s' if workers != 1 else ''}"
    )


def _checked_top(top: int | None, by: Any) -> int:
    if top is None:
        return 5 if by is None else 0
    if isinstance(top, bool) or not isinstance(top, int) or not 0 <= top <= 10_000:
        raise ValueError(f"top must be a number of rows from 0 to 10,000; got {top!r}")
    return top
