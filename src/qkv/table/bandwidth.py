"""Default bandwidths: those of least leave-one-out error on a sample of the table.

The search, and the error of numbers, are those of the regressor: the same rows get the same width.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from qkv.bandwidth import Score, affordable_grid, log_error, search, span
from qkv.operators.sorted.sorted_keys import KERNELS as SORTED
from qkv.operators.sorted.sorted_keys import SortedKeys, failure
from qkv.staircase import lowest, staircase
from qkv.table.aggregation import complete
from qkv.table.columns import Kind, kind_of, numbers, plain, vectors
from qkv.table.comparison import COMPACT, log_kernel
from qkv.table.similarity_spec import SimilaritySpec, compare
from qkv.table.sources import Request, Source
from qkv.table.sources.base import Where

#: Rows in the sample, each of which is predicted from the others.
SAMPLE_ROWS = 1000

Array = npt.NDArray[np.float64]


class Lots(NamedTuple):
    """A random sample: the rows with the lowest random keys, the lowest first."""

    rows: pa.Table
    lots: np.ndarray

    def merge(self, other: Lots) -> Lots:
        """The lowest of both."""
        lots = np.concatenate([self.lots, other.lots])
        order = np.argsort(lots, kind="stable")[:SAMPLE_ROWS]
        rows = pa.concat_tables([self.rows, other.rows]).take(pa.array(order))
        return Lots(rows.combine_chunks(), lots[order])


def sample_request(source: Source, columns: list[str], where: Where) -> Request:
    """The request that reads a source for a uniform, reproducible sample of its rows."""
    if source.once:
        raise ValueError(
            f"bandwidth must be given: choosing it needs a separate scan, and this source "
            f"({source.description}) can be read only once"
        )
    return Request(columns, whole_rows=False, where=where)


def draw(source: Source, request: Request, before: int = 0) -> Lots:
    """Sample rows by a random key that depends only on their number; `before` precede these."""
    bits = np.random.PCG64(0).advance(before)
    generator = np.random.Generator(bits)
    schema = pa.schema([source.schema.field(name) for name in request.columns])
    sample = Lots(schema.empty_table(), np.empty(0))
    for batch in source.scan(request).batches():
        here, _ = complete(batch, dict.fromkeys(request.columns, 0))
        sample = sample.merge(Lots(pa.Table.from_batches([here]), generator.random(len(here))))
    return sample


def count_rows(source: Source, request: Request) -> int:
    """How many rows can be sampled."""
    return sum(
        len(complete(batch, dict.fromkeys(request.columns, 0))[0])
        for batch in source.scan(request).batches()
    )


def choose(rows: pa.Table, specs: dict[str, SimilaritySpec], value: str) -> dict[str, float]:
    """Bandwidths for the columns that lack one.

    Leave-one-out: each row's value is predicted from all other rows. Numbers are judged by squared
    error, other values by the log-likelihood of the row's value.
    """
    unset = [column for column, spec in specs.items() if spec.lacks_bandwidth]
    points = {column: _points(_combined(rows.column(column)), column) for column in unset}
    if len(rows) < 2:
        return dict.fromkeys(unset, 1.0)
    values = _combined(rows.column(value))
    score = _on_a_line(points, specs, values) if len(specs) == 1 else None
    on_a_line = score is not None
    compact = all(specs[column].name in COMPACT for column in unset)
    compact = compact and (on_a_line or len(unset) > 1)  # else finer steps would take too long
    score = score or _between_all(rows, points, specs, values)
    copies = np.ones(len(rows))
    axes = [span(points[column], copies, len(unset), compact) for column in unset]
    if on_a_line and specs[unset[0]].name == "boxcar":
        axes[0] = axes[0]._replace(places=_steps(points[unset[0]][:, 0], values))
    best = search(score, axes, len(unset), affordable_grid(len(rows)))
    return dict(zip(unset, np.exp(best.point).tolist(), strict=True))


def _steps(key: Array, values: pa.Array) -> tuple[float, ...]:
    """The lowest steps of a boxcar's curve."""
    stairs = staircase(key, _Numbers(values).truth, np.ones(len(key)), degree=0)
    return tuple(np.log(lowest(stairs.width, stairs.left_out)))


def _on_a_line(
    points: dict[str, Array], specs: dict[str, SimilaritySpec], values: pa.Array
) -> Score | None:
    """By sums over sorted keys, if keys and values are numbers."""
    ((column, spec),) = specs.items()
    if points[column].shape[1] != 1 or kind_of(values.type) is not Kind.NUMBER:
        return None
    if spec.name not in SORTED or failure(spec.name) is not None:
        return None
    judge = _Numbers(values)
    line = SortedKeys(np.ascontiguousarray(points[column][:, 0]), judge.truth)

    def score(point: Array) -> float:
        pooled = line.pool_others(spec.name, math.exp(point[0]))
        return judge.score(pooled.answer, np.isneginf(pooled.log_total))

    return score


def _between_all(
    rows: pa.Table, points: dict[str, Array], specs: dict[str, SimilaritySpec], values: pa.Array
) -> Score:
    """By the weights of all pairs of rows."""
    fixed = np.zeros((len(rows), len(rows)))
    np.fill_diagonal(fixed, -np.inf)  # leave each row itself out
    for column, spec in specs.items():
        if column not in points:
            keys = _combined(rows.column(column))
            fixed += compare(column, keys.type, keys, spec).logs(keys)
    squares = {column: _squared_distances(point) for column, point in points.items()}
    numeric = kind_of(values.type) in (Kind.NUMBER, Kind.VECTOR)
    judge = _Numbers(values) if numeric else _Names(values)

    def score(point: Array) -> float:
        logs = fixed.copy()
        for (column, square), width in zip(squares.items(), np.exp(point), strict=True):
            logs += log_kernel(specs[column].name, square / width**2)
        return judge.of_weights(_weights(logs))

    return score


def _combined(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    array = combined.combine_chunks() if isinstance(combined, pa.ChunkedArray) else combined
    return plain(array)


def _points(keys: pa.Array, column: str) -> Array:
    """Keys as points, (m, d)."""
    if kind_of(keys.type) is Kind.VECTOR:
        return np.asarray(vectors(keys, column), dtype=np.float64)
    return np.asarray(numbers(keys, 0)[:, None], dtype=np.float64)


def _squared_distances(points: Array) -> Array:
    return np.asarray(((points[:, None, :] - points[None, :, :]) ** 2).sum(axis=-1))


def _weights(logs: Array) -> Array:
    """Rows that sum to 1, or are all 0."""
    peak = logs.max(axis=1, keepdims=True, initial=-np.inf)
    weights = np.exp(logs - np.where(np.isneginf(peak), 0.0, peak))
    total = weights.sum(axis=1, keepdims=True)
    normalized: Array = np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)
    return normalized


class _Numbers:
    """The squared error of numbers, or vectors of them."""

    def __init__(self, values: pa.Array) -> None:
        is_vector = kind_of(values.type) is Kind.VECTOR
        truth = vectors(values, "value") if is_vector else numbers(values)[:, None]
        # Around their mean, so that values far from 0 keep their digits.
        self.truth: Array = np.ascontiguousarray(truth - truth.mean(axis=0), dtype=np.float64)
        self.variance = float((self.truth**2).mean()) or 1.0

    def of_weights(self, weights: Array) -> float:
        return self.score(weights @ self.truth, weights.sum(axis=1) == 0)

    def score(self, predicted: Array, has_none: npt.NDArray[np.bool_]) -> float:
        """The squared error of predictions (m, k); where none, the others' mean is predicted."""
        mean_of_others = -self.truth / (len(self.truth) - 1)
        predicted = np.where(has_none[:, None], mean_of_others, predicted)
        return log_error(float(((predicted - self.truth) ** 2).mean()), self.variance)


class _Names:
    """The negative log-likelihood of categorical values."""

    def __init__(self, values: pa.Array) -> None:
        codes = values.dictionary_encode().indices.to_numpy()
        self.same = codes[:, None] == codes[None, :]
        self.floor = 1.0 / len(codes) ** 2

    def of_weights(self, weights: Array) -> float:
        shares = np.maximum((weights * self.same).sum(axis=1), self.floor)
        return round(float(-np.log(shares).mean()), 10)
