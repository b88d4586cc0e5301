"""Soft joins against rapidfuzz, pandas and DuckDB; a part of `qkv bench table`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from qkv.benchmarks import Figure
from qkv.benchmarks.measure import peak_extra_bytes, seconds
from qkv.optional_dependencies import require
from qkv.similarity import Triangular
from qkv.table import soft_join
from qkv.table.similarity_spec import FUZZY_BANDWIDTH

ASKED, NAMES, CUTOFF = 10**4, 10**5, 0.8
TIMES = 10**6
TOLERANCE = 3  # seconds; times are a second apart on average
#: Left rows that `cdist` is given at a time: all pairs would take 4 GB.
BLOCK = 250

_SYLLABLES = [
    "an", "ber", "chi", "da", "el", "fra", "go", "hel", "in", "jo", "ka", "li", "ma", "ne", "o",
    "pe", "ri", "sa", "to", "u", "va", "wi", "xe", "ya", "zo", "mül", "gar", "lö", "ander", "son",
]  # fmt: skip


def measure() -> Iterator[Figure]:
    yield from _names()
    yield from _times()


def _made_up(rng: np.random.Generator) -> str:
    first, second = rng.integers(2, 5, 2)
    syllables = rng.choice(_SYLLABLES, first + second).tolist()
    return "".join(syllables[:first]) + " " + "".join(syllables[first:])


def _misspelt(name: str, rng: np.random.Generator) -> str:
    """Up to two letters dropped, doubled or exchanged."""
    for _ in range(rng.integers(0, 3)):
        place = int(rng.integers(0, len(name)))
        name = name[:place] + rng.choice(["", name[place] * 2, "x"]) + name[place + 1 :]
    return name


def _names() -> Iterator[Figure]:
    process, fuzz = require("rapidfuzz.process", "table"), require("rapidfuzz.fuzz", "table")
    rng = np.random.default_rng(0)
    names = [_made_up(rng) for _ in range(NAMES)]
    queries = [_misspelt(names[place], rng) for place in rng.integers(0, NAMES, ASKED)]
    left, right = pa.table({"name": queries}), pa.table({"name": names, "price": rng.random(NAMES)})

    def peer() -> np.ndarray:
        best = [
            process.cdist(
                queries[start : start + BLOCK],
                names,
                scorer=fuzz.ratio,
                score_cutoff=100 * CUTOFF,
                workers=torch.get_num_threads(),
            ).max(axis=1)
            for start in range(0, ASKED, BLOCK)
        ]
        return np.concatenate(best)

    def ours() -> pa.Table:
        return soft_join(left, right, on={"name": "fuzzy"}, cutoff=CUTOFF)

    joined = ours()
    extra = peak_extra_bytes(ours) / 1e6
    theirs, our_time = seconds(peer, ours, least=3.0, rounds=3)
    work = f"soft join of {ASKED:,} × {NAMES:,} names, against rapidfuzz's cdist"
    yield Figure(work, our_time / theirs, "×", "≤ 1.1", f"{our_time:.2f} s against {theirs:.2f} s")
    yield Figure("… peak extra memory", extra, "MB", "≤ 400")
    similarity = joined["similarity"].fill_null(0.0).to_numpy()
    ratio = np.zeros(ASKED)
    is_matched = similarity > 0.0
    ratio[is_matched] = 1.0 + FUZZY_BANDWIDTH * np.log(similarity[is_matched])
    worst = float(np.abs(100 * ratio - peer()).max())
    yield Figure("… largest difference of best ratios, of 100", worst, "", "≤ 1e-4")


def _times() -> Iterator[Figure]:
    pandas = require("pandas", "table")
    rng = np.random.default_rng(1)

    def times() -> np.ndarray:
        return np.sort(rng.integers(0, TIMES * 10**9, TIMES)).astype("datetime64[ns]")

    left = pandas.DataFrame({"time": times(), "number": np.arange(TIMES)})
    right = pandas.DataFrame({"time": times(), "price": rng.random(TIMES)})
    tolerance = pandas.Timedelta(seconds=TOLERANCE)

    def peer(**options: Any) -> Any:
        return pandas.merge_asof(left, right, on="time", direction="nearest", **options)

    def ours(similarity: Any = "nearest") -> pa.Table:
        return soft_join(left, right, on={"time": similarity}, take="price")

    def within() -> pa.Table:
        return ours(Triangular(TOLERANCE))

    theirs, our_time, soft = seconds(peer, ours, within, least=3.0, rounds=9)
    work = f"nearest of {TIMES:,} × {TIMES:,} times, against merge_asof"
    yield Figure(work, our_time / theirs, "×", "≤ 3", f"{our_time:.3f} s against {theirs:.3f} s")
    agree = _agree(ours(), peer())
    yield Figure("… rows that find the same", 100 * agree, "%", "≥ 100")
    agree = _agree(within(), peer(tolerance=tolerance))
    note = f"{soft:.3f} s, with the weights of all rows within {TOLERANCE} s"
    yield Figure("… triangular, rows that find the same", 100 * agree, "%", "≥ 100", note)
    (ranged,) = seconds(lambda: _range_join(left, right), least=0.0, rounds=1)
    work = "… triangular, against DuckDB's range join"
    yield Figure(work, ranged / soft, "× faster", "", f"{ranged:.2f} s")


def _agree(joined: pa.Table, expected: Any) -> float:
    ours, theirs = (
        joined["price"].to_pandas().to_numpy(),
        expected["price"].to_numpy(),
    )
    return float(((ours == theirs) | (np.isnan(ours) & np.isnan(theirs))).mean())


def _range_join(left: Any, right: Any) -> Any:
    """The nearest within the tolerance, in SQL."""
    connection = require("duckdb", "table").connect()
    connection.execute("SET enable_progress_bar = false")
    connection.register("asked", left)
    connection.register("known", right)
    near = f"known.time BETWEEN asked.time - INTERVAL {TOLERANCE} SECOND"
    near += f" AND asked.time + INTERVAL {TOLERANCE} SECOND"
    nearest = "arg_min(price, abs(epoch_ns(known.time) - epoch_ns(asked.time)))"
    sql = f"SELECT number, {nearest} FROM asked LEFT JOIN known ON {near} GROUP BY number"
    return connection.sql(sql).to_arrow_table()
