"""How far to look, where nobody says: what best foretells each row of a sample from the others."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from qkv.table.columns import Kind, kind_of, numbers, plain, vectors
from qkv.table.comparison import log_kernel
from qkv.table.similarity import Wanted, compare
from qkv.table.sources import Request, Source
from qkv.table.sources.base import Where

#: Rows that are foretold from each other.
SAMPLE_ROWS = 1000
#: Bandwidths tried, in standard deviations of the keys.
FACTORS = 2.0 ** np.arange(-9.0, 2.5, 0.5)


def sample(source: Source, columns: list[str], where: Where) -> pa.Table:
    """Rows drawn evenly from the whole table, the same ones each time."""
    if source.once:
        raise ValueError(
            f"bandwidth must be given: to choose it takes a reading of its own, and this source "
            f"({source.description}) can be read only once"
        )
    generator = np.random.default_rng(0)
    kept, lots = (
        pa.schema([source.schema.field(name) for name in columns]).empty_table(),
        np.empty(0),
    )
    for batch in source.scan(Request(columns, whole_rows=False, where=where)).batches():
        here = batch.drop_null()
        drawn = generator.random(len(here))
        # Every row draws a lot, and the lowest stay.
        lots = np.concatenate([lots, drawn])
        order = np.argsort(lots, kind="stable")[:SAMPLE_ROWS]
        kept = pa.concat_tables([kept, pa.Table.from_batches([here])]).take(pa.array(order))
        lots = lots[order]
    return kept.combine_chunks()


def choose(rows: pa.Table, wanted: dict[str, Wanted], value: str) -> dict[str, float]:
    """Bandwidths for the columns that lack one: one factor, times each column's deviation.

    Leave-one-out: each row's value is foretold by all other rows. Numbers are judged by squared
    error, other values by the logarithm of the weight that their own value got.
    """
    lacking = [column for column, own in wanted.items() if own.lacks_bandwidth]
    scales, squares = {}, {}
    fixed = np.zeros((len(rows), len(rows)))
    np.fill_diagonal(fixed, -np.inf)  # no row may look at itself
    for column, own in wanted.items():
        keys = _whole(rows.column(column))
        if column in lacking:
            scales[column], squares[column] = _distances(keys, column)
        else:
            fixed += compare(column, keys.type, keys, own).logs(keys)
    foretell = _judge(_whole(rows.column(value)))
    errors = []
    for factor in FACTORS:
        logs = fixed.copy()
        for column in lacking:
            logs += log_kernel(wanted[column].name, squares[column] / factor**2)
        errors.append(foretell(_weights(logs)))
    # Of those that are as good, the widest.
    good = FACTORS[np.array(errors) <= min(errors) * (1 + 1e-9)]
    best = float(good[-1]) if len(rows) > 1 else 1.0
    return {column: best * scales[column] for column in lacking}


def _whole(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    array = combined.combine_chunks() if isinstance(combined, pa.ChunkedArray) else combined
    return plain(array)


def _distances(keys: pa.Array, column: str) -> tuple[float, np.ndarray]:
    """The standard deviation of keys, and squared distances in units of it."""
    if kind_of(keys.type) is Kind.VECTOR:
        points = vectors(keys, column)
    else:
        points = numbers(keys, 0)[:, None]
    deviation = float(np.sqrt(points.var(axis=0).sum())) if len(points) else 1.0
    scale = deviation if np.isfinite(deviation) and deviation > 0.0 else 1.0
    difference = (points[:, None, :] - points[None, :, :]) / scale
    return scale, (difference**2).sum(axis=-1)


def _weights(logs: np.ndarray) -> np.ndarray:
    """Rows that sum to 1, or are all 0."""
    peak = logs.max(axis=1, keepdims=True, initial=-np.inf)
    weights = np.exp(logs - np.where(np.isneginf(peak), 0.0, peak))
    total = weights.sum(axis=1, keepdims=True)
    return np.divide(weights, total, out=np.zeros_like(weights), where=total > 0)  # type: ignore[no-any-return]


def _judge(values: pa.Array):  # type: ignore[no-untyped-def]
    """A function from leave-one-out weights to an error."""
    if kind_of(values.type) in (Kind.NUMBER, Kind.VECTOR):
        is_vector = kind_of(values.type) is Kind.VECTOR
        truth = vectors(values, "value") if is_vector else numbers(values)[:, None]
        mean = truth.mean(axis=0) if len(truth) else truth

        def squared_error(weights: np.ndarray) -> float:
            # Who sees nobody must guess the mean.
            alone = weights.sum(axis=1, keepdims=True) == 0.0
            return float(((np.where(alone, mean, weights @ truth) - truth) ** 2).mean())

        return squared_error
    codes = values.dictionary_encode().indices.to_numpy()
    same = codes[:, None] == codes[None, :]
    floor = 1.0 / max(len(codes), 1) ** 2

    def surprise(weights: np.ndarray) -> float:
        return float(-np.log(np.maximum((weights * same).sum(axis=1), floor)).mean())

    return surprise
