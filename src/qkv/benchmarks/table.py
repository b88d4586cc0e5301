"""Tables against a bare scan, single passes, DuckDB and NumPy. Files are made on the fly."""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

import qkv
from qkv.benchmarks import Figure, join
from qkv.benchmarks.measure import peak_extra_bytes, seconds
from qkv.optional_dependencies import require

LARGE, MEDIUM, QUERIES, SAMPLED, GROUPS = 10**8, 10**7, 1000, 50, 50
BANDWIDTH = 0.01  # of keys spread over 0 to 1
CHUNK = 2**20
NEEDED_BYTES = 4 * 10**9


def measure() -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="qkv-bench-") as name:
        folder = Path(name)
        if shutil.disk_usage(folder).free < NEEDED_BYTES:
            raise OSError(f"the benchmark needs {NEEDED_BYTES // 10**9} GB in {folder.parent}")
        path = folder / "table.parquet"
        _write(path, LARGE, ascending=False)
        yield from _one_query(path)
        _write(path, LARGE, ascending=True)
        yield _row_groups(path)
        _write(path, MEDIUM, ascending=False)
        yield from _many_queries(path)
        _write(path, MEDIUM, ascending=False, groups=GROUPS)
        yield from _groups(path)
        yield from _asked_again(path)
    yield from join.measure()


def _write(path: Path, rows: int, ascending: bool, groups: int = 0) -> None:
    """Two float64 columns, and one of texts for groups, with pyarrow's own settings."""
    generator = np.random.default_rng(0)
    names = np.array([f"group {number}" for number in range(groups)])
    schema = pa.schema([("key", pa.float64()), ("value", pa.float64())])
    if groups:
        schema = schema.append(pa.field("name", pa.string()))
    with pq.ParquetWriter(path, schema) as writer:
        for start in range(0, rows, CHUNK):
            count = min(CHUNK, rows - start)
            key = generator.random(count)
            if ascending:
                key = (start + np.arange(count) + key) / rows
            value = np.sin(6 * key) + generator.normal(size=count)
            columns: dict[str, Any] = {"key": key, "value": value}
            if groups:
                columns["name"] = names[generator.integers(0, groups, count)]
            writer.write_table(pa.table(columns, schema))


def _one_query(path: Path) -> Iterator[Figure]:
    def bare_scan() -> None:
        for _ in ds.dataset(path).scanner(columns=["key", "value"]).to_batches():
            pass

    ask = _asking(path, 0.5)
    ask()
    extra = peak_extra_bytes(ask) / 1e6
    scanned, our_time = seconds(bare_scan, ask, least=5.0, rounds=7)
    work = f"Gaussian query, {LARGE:,} rows, against a bare pyarrow scan"
    yield Figure(
        work,
        our_time / scanned,
        "×",
        "≤ 1.5",
        f"{our_time:.2f} s against {scanned:.2f} s",
    )
    yield Figure("… peak extra memory", extra, "MB", "≤ 400")


def _row_groups(path: Path) -> Figure:
    database = qkv.Database(path, key="key", value="value")
    answer = database.query(0.5, similarity="boxcar", bandwidth=0.001)
    read, total = answer.plan.row_groups_read, answer.plan.row_groups
    assert read is not None
    assert total is not None
    work = f"boxcar query, {LARGE:,} sorted rows, row groups read"
    return Figure(work, 100 * read / total, "%", "< 2", f"{read} of {total}")


def _many_queries(path: Path) -> Iterator[Figure]:
    queries = np.random.default_rng(1).random(QUERIES)
    together = _asking(path, queries)
    (once,) = seconds(together, least=3.0, rounds=3)
    singles = [_asking(path, float(query)) for query in queries[:: QUERIES // SAMPLED]]
    apart = _timed(lambda: [single() for single in singles]) * QUERIES / SAMPLED
    work = f"{QUERIES:,} queries in one pass over {MEDIUM:,} rows, against single passes"
    note = f"{once:.2f} s; {SAMPLED} single passes timed"
    yield Figure(work, apart / once, "× faster", "≥ 20", note)
    some = queries[:: QUERIES // SAMPLED]
    best = _timed(_in_duckdb(path, some)) * QUERIES / SAMPLED
    note = f"a join on a range; {SAMPLED} queries timed in one SQL"
    yield Figure("… against DuckDB", best / once, "× faster", "≥ 10", note)
    yield Figure("… error against NumPy", _error(path, queries, together()), "", "≤ 1e-9")


def _groups(path: Path) -> Iterator[Figure]:
    """One Gaussian query for each group, against the same sums in DuckDB's SQL."""
    database = qkv.Database(path, key="key", value="value")
    connection = require("duckdb", "table").connect()
    connection.execute("SET enable_progress_bar = false")
    weighed = f"exp(-0.5 * ((key - 0.5) / {BANDWIDTH}) ** 2)"
    sums = "sum(w), sum(w * value) / sum(w), sum(w * w), sum(w * value * value)"
    rows = f"SELECT name, value, {weighed} AS w FROM '{path}'"
    sql = f"SELECT name, {sums} FROM ({rows}) GROUP BY name"

    def ask() -> Any:
        return database.query(0.5, similarity="gaussian", bandwidth=BANDWIDTH, by="name")

    inside, outside = seconds(ask, lambda: connection.sql(sql).fetchall(), least=2.0, rounds=7)
    work = f"{GROUPS} groups in one pass over {MEDIUM:,} rows, against DuckDB's SQL"
    yield Figure(work, inside / outside, "×", "≤ 1.2", f"{inside:.3f} s against {outside:.3f} s")
    means = {name: mean for name, _, mean, *_ in connection.sql(sql).fetchall()}
    error = max(abs(answer.value / means[name] - 1) for name, answer in ask().items())
    yield Figure("… largest difference of means", error, "", "≤ 1e-9")


def _asked_again(path: Path) -> Iterator[Figure]:
    """Queries to an index, and whether a scan gives the same answers."""
    database = qkv.Database(path, key="key", value="value")
    indexed = database.indexed()
    exact = database.query(0.5, similarity="gaussian", bandwidth=1e-7).rows[0]["key"]
    questions: dict[str, tuple[Any, dict[str, Any], str]] = {
        "equal": (exact, {}, "≤ 1"),
        "boxcar": (0.5, {"similarity": "boxcar", "bandwidth": BANDWIDTH}, "≤ 1"),
        "Gaussian": (0.5, {"similarity": "gaussian", "bandwidth": BANDWIDTH}, "≤ 5"),
    }
    worst = 0.0
    for name, (query, options, limit) in questions.items():
        ask = partial(indexed.query, query, **options)
        (elapsed,) = seconds(ask, least=0.5, rounds=7)
        note = "" if name == "equal" else "a hundredth of the range wide"
        yield Figure(
            f"{name} query to an index of {MEDIUM:,} rows", 1e3 * elapsed, "ms", limit, note
        )
        answer, scanned = ask(), database.query(query, **options)
        for ours, other in ((answer.value, scanned.value), (answer.std, scanned.std)):
            worst = max(worst, abs(ours - other) / max(abs(other), 1e-300))
    yield Figure("… largest difference from the scan", worst, "", "≤ 1e-12")


def _in_duckdb(path: Path, queries: np.ndarray) -> Callable[[], Any]:
    """The same sums in one SQL: a join on the range where keys weigh anything.

    Quicker than the other ways that were tried with 40 queries, which took 3 times as long: a
    join without a range, and two expressions for each query in one SELECT.
    """
    connection = require("duckdb", "table").connect()
    connection.execute("SET enable_progress_bar = false")
    connection.register("asked", pa.table({"q": queries}))
    weighed = f"exp(-0.5 * ((key - q) / {BANDWIDTH}) ** 2)"
    sums = "sum(w), sum(w * value) / sum(w), sum(w * w), sum(w * value * value)"
    near = f"key BETWEEN q - {9 * BANDWIDTH} AND q + {9 * BANDWIDTH}"
    join = f"SELECT q, value, {weighed} AS w FROM '{path}', asked WHERE {near}"
    sql = f"SELECT q, {sums} FROM ({join}) GROUP BY q"
    return lambda: connection.sql(sql).fetchall()


def _error(path: Path, queries: np.ndarray, answers: list[qkv.Answer]) -> float:
    """The largest relative error of means and deviations, of one answer in a hundred."""
    table = pq.read_table(path)
    key, value = table["key"].to_numpy(), table["value"].to_numpy()
    worst = 0.0
    for query, answer in list(zip(queries, answers, strict=True))[::100]:
        weights = np.exp(-0.5 * ((key - query) / BANDWIDTH) ** 2)
        weights /= weights.sum()
        mean = weights @ value
        deviation = np.sqrt(weights @ (value - mean) ** 2)
        worst = max(worst, abs(answer.value / mean - 1), abs(answer.std / deviation - 1))
    return worst


def _asking(path: Path, query: Any) -> Callable[[], Any]:
    database = qkv.Database(path, key="key", value="value")
    return lambda: database.query(query, similarity="gaussian", bandwidth=BANDWIDTH)


def _timed(function: Callable[[], Any]) -> float:
    start = time.perf_counter()
    function()
    return time.perf_counter() - start
