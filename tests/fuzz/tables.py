"""Tables against loops over their rows in float64: types, nulls, sources, where, similarities."""

from __future__ import annotations

import datetime as dt
import math
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from rapidfuzz import fuzz
from table.stored import stored

import qkv

Row = dict[str, Any]
SOURCES = ("arrow", "pandas", "polars", "lazy", "parquet", "csv", "duckdb", "indexed")
KERNELS = ("gaussian", "laplacian", "boxcar", "triangular", "epanechnikov")
WORDS = ("ann", "anna", "Bob", "bob ", "it's", 'say "hi"', "a,b", "é中", "O'Neil; x", "x" * 40)
KEYS = ("int", "small", "float", "single", "text", "town", "day", "time", "flag", "vector")


@dataclass(frozen=True)
class Asked:
    table: pa.Table
    rows: list[Row]
    source: str
    key: list[str]
    value: str
    queries: list[Row]
    similarity: dict[str, str]
    bandwidth: dict[str, float]
    where: str | None
    keeps: Callable[[Row], bool | None]
    weight: str | None
    by: str | None

    def __str__(self) -> str:
        return (
            f"{self.source} {self.table.num_rows} rows, {self.key} -> {self.value}, "
            f"{self.similarity} {self.bandwidth}, where {self.where}, weight {self.weight}, "
            f"by {self.by}, queries {self.queries}"
        )


def check(seed: int) -> int:
    """Ask the table of a seed; the number of answers that were compared."""
    asked = draw(seed)
    try:
        with tempfile.TemporaryDirectory() as folder:
            return _compare(asked, Path(folder))
    except Exception as error:
        error.add_note(f"seed {seed}: {asked}")
        raise


def draw(seed: int) -> Asked:
    """The table and the questions of a seed."""
    rng = np.random.default_rng(seed)
    source = str(rng.choice(SOURCES))
    count = int(rng.choice([1, 2, 3, 7, 50, 300]))
    table = _table(rng, count, 0.0 if rng.random() < 0.5 else 0.2)
    rows = table.to_pylist()
    kinds = [name for name in KEYS if not (name == "vector" and source in ("csv", "indexed"))]
    key = [str(x) for x in rng.choice(kinds, int(rng.choice([1, 1, 2])), replace=False)]
    if source in ("csv", "pandas"):  # whose columns say nothing where all is missing
        key = [name for name in key if any(row[name] is not None for row in rows)] or ["row"]
    value = str(rng.choice(["number", "number", "label", "whole"]))
    similarity = {name: _similarity(rng, name) for name in key}
    bandwidth = {
        name: _width(rng, name) for name, chosen in similarity.items() if chosen in KERNELS
    }
    where, keeps = _where(rng) if rng.random() < 0.5 else (None, lambda row: True)
    return Asked(
        table, rows, source, key, value,
        [_query(rng, rows, key) for _ in range(int(rng.choice([1, 3])))],
        similarity, bandwidth, where, keeps,
        weight="times" if rng.random() < 0.2 else None,
        by="group" if rng.random() < 0.2 else None,
    )  # fmt: skip


def _table(rng: np.random.Generator, count: int, missing: float) -> pa.Table:
    def column(make: Callable[[], Any], type: pa.DataType, holes: bool = True) -> pa.Array:
        cells = [None if holes and rng.random() < missing else make() for _ in range(count)]
        return pa.array(cells, type)

    far = float(rng.choice([0.0, 0.0, 1e6]))
    return pa.table(
        {
            "row": pa.array(range(count)),
            "int": column(lambda: int(rng.integers(-9, 9)) + int(far), pa.int64()),
            "small": column(lambda: int(rng.integers(0, 9)), pa.uint8()),
            "float": column(lambda: float(rng.normal()) + far, pa.float64()),
            "single": column(lambda: float(np.float32(rng.normal())), pa.float32()),
            "text": column(lambda: str(rng.choice(WORDS)), pa.string()),
            "town": column(lambda: str(rng.choice(WORDS[:3])), pa.string()),
            "day": column(lambda: dt.date(2020, 1, 1 + int(rng.integers(28))), pa.date32()),
            "time": column(
                lambda: dt.datetime(2020, 1, 1) + dt.timedelta(seconds=int(rng.integers(10**5))),
                pa.timestamp("us"),
            ),
            "flag": column(lambda: bool(rng.random() < 0.5), pa.bool_()),
            "vector": column(lambda: rng.normal(size=3).tolist(), pa.list_(pa.float64(), 3)),
            "number": pa.array(rng.normal(40, 9, count)),
            "whole": pa.array(rng.integers(-(10**6), 10**6, count)),
            "label": pa.array([str(rng.choice(["x", "y", "z"])) for _ in range(count)]),
            "times": pa.array(rng.integers(0, 4, count)),
            "group": pa.array([str(rng.choice(["g", "h"])) for _ in range(count)]),
        }
    )


def _similarity(rng: np.random.Generator, name: str) -> str:
    if name in ("text", "town"):
        return str(rng.choice(["equal", "fuzzy"]))
    return str(rng.choice(["equal", *KERNELS]))


def _width(rng: np.random.Generator, name: str) -> float:
    if name in ("int", "small", "day") and rng.random() < 0.5:
        return float(rng.integers(1, 5))  # where rows lie just on the edge
    size = {"time": 2e4, "day": 4.0, "int": 3.0, "small": 3.0}.get(name, 1.0)
    return size * float(np.exp(rng.uniform(-3, 2)))


def _query(rng: np.random.Generator, rows: list[Row], key: list[str]) -> Row:
    """A row's own keys, or others near them."""
    found: Row = {}
    for name in key:
        known = [row[name] for row in rows if row[name] is not None]
        one = known[int(rng.integers(len(known)))] if known else None
        away = rng.random() < 0.5 or one is None
        match name:
            case "int" | "small" | "row":
                found[name] = int(rng.integers(0, 12)) if away else one
            case "float" | "single":
                found[name] = float(rng.normal()) * 2 + (one or 0.0) if away else one
            case "text" | "town":
                found[name] = str(rng.choice([*WORDS, "zoe"])) if away else one
            case "day":
                found[name] = dt.date(2020, 1, 15) if away else one
            case "time":
                found[name] = dt.datetime(2020, 1, 1, 9, 30, 1) if away else one
            case "flag":
                found[name] = True if away else one
            case "vector":
                found[name] = rng.normal(size=3).tolist() if away else one
    return found


Predicate = Callable[[Row], bool | None]


def _where(rng: np.random.Generator, depth: int = 0) -> tuple[str, Predicate]:
    """A condition in words, and what it says of a row; None where it cannot tell."""
    if depth < 3 and rng.random() < 0.5:
        left, right = _where(rng, depth + 1), _where(rng, depth + 1)
        match int(rng.integers(3)):
            case 0:
                return f"({left[0]} and {right[0]})", lambda row: _both(left[1](row), right[1](row))
            case 1:
                both = lambda row: _not(_both(_not(left[1](row)), _not(right[1](row))))  # noqa: E731
                return f"({left[0]} or {right[0]})", both
        return f"not ({left[0]})", lambda row: _not(left[1](row))
    match int(rng.integers(6)):
        case 0:
            limit = round(float(rng.normal()), 3)
            return f"single >= {limit}", lambda row: _known(row["single"], lambda x: x >= limit)
        case 1:
            some = [int(x) for x in rng.integers(0, 9, 3)]
            text = ", ".join(map(str, some))
            return f"small in ({text})", lambda row: _known(row["small"], lambda x: x in some)
        case 2:
            word = str(rng.choice(WORDS))
            quoted = word.replace("'", "''")
            return f"text <> '{quoted}'", lambda row: _known(row["text"], lambda x: x != word)
        case 3:
            return "day is null", lambda row: row["day"] is None
        case 4:
            day = dt.date(2020, 1, int(rng.integers(1, 29)))
            return f"day < '{day}'", lambda row: _known(row["day"], lambda x: x < day)
    return "flag = true", lambda row: row["flag"]


def _known(cell: Any, holds: Callable[[Any], bool]) -> bool | None:
    return None if cell is None else holds(cell)


def _not(holds: bool | None) -> bool | None:
    return None if holds is None else not holds


def _both(left: bool | None, right: bool | None) -> bool | None:
    if left is False or right is False:
        return False
    return None if left is None or right is None else True


def _log_weight(name: str, chosen: str, width: float, query: Any, cell: Any) -> float:
    if chosen == "fuzzy":
        ratio = fuzz.ratio(query.lower(), cell.lower()) / 100
        return -(1 - ratio) / 0.05 if ratio >= 0.6 else -math.inf
    if chosen == "equal":
        return 0.0 if query == cell else -math.inf
    if isinstance(cell, list):
        far = math.dist(query, cell)
    elif isinstance(cell, dt.datetime):
        far = abs((query - cell).total_seconds())
    elif isinstance(cell, dt.date):
        far = float(abs((query - cell).days))
    else:
        far = abs(float(query) - float(cell))
    u = far / width
    if chosen == "gaussian":
        return -0.5 * u * u
    if chosen == "laplacian":
        return -u
    height = {"boxcar": float(u <= 1), "triangular": 1 - u, "epanechnikov": 1 - u * u}[chosen]
    return math.log(height) if height > 0 else -math.inf


def _weights(asked: Asked, query: Row, rows: list[Row]) -> tuple[list[float], float]:
    """What each row weighs, and how well that is known: logarithms have so many digits."""
    logs = []
    for row in rows:
        log = math.log(row["times"]) if asked.weight and row["times"] else 0.0
        if asked.weight and not row["times"]:
            log = -math.inf
        for name, chosen in asked.similarity.items():
            width = asked.bandwidth.get(name, 1.0)
            log += _log_weight(name, chosen, width, query[name], row[name])
        logs.append(log)
    peak = max(logs, default=-math.inf)
    if peak == -math.inf:
        return [0.0] * len(logs), 0.0
    return [math.exp(log - peak) for log in logs], 1e-14 * abs(peak)


def _compare(asked: Asked, folder: Path) -> int:
    kind = "arrow" if asked.source == "indexed" else asked.source
    table = asked.table
    if kind == "csv":
        table = table.drop_columns(["vector"])
        # Written with all their digits: a file does not say that they were of single precision.
        single = table.column_names.index("single")
        table = table.set_column(single, "single", table["single"].cast(pa.float64()))
    source, options = stored(kind, table, folder, "")
    key: Any = asked.key if len(asked.key) > 1 else asked.key[0]
    database = qkv.Database(source, key=key, value=asked.value, **options)
    if asked.source == "indexed":
        database = database.indexed()
    where = asked.where
    if kind in ("csv", "pandas") and where is not None:
        # A column of which nothing is there has no type to be compared as.
        empty = [name for name in table.column_names if table[name].null_count == len(table)]
        where = None if any(name in where for name in empty) else where
    found = database.query(
        asked.queries,
        similarity=asked.similarity,
        bandwidth=asked.bandwidth or None,
        where=where,
        weight=asked.weight,
        by=asked.by,
    )
    keeps = asked.keeps if where is not None else lambda row: True
    used = [
        row
        for row in asked.rows
        if keeps(row) and all(row[name] is not None for name in (*asked.key, asked.value))
    ]
    count = 0
    for query, answer in zip(asked.queries, found, strict=True):
        groups = sorted({row["group"] for row in used}) if asked.by else [None]
        for group in groups:
            rows = [row for row in used if group is None or row["group"] == group]
            weights, doubt = _weights(asked, query, rows)
            if asked.by and not math.fsum(weights):
                continue  # a group of no weight need not be named
            one = answer if group is None else answer[group]
            _same(one, rows, weights, asked.value, doubt)
            count += 1
    return count


def _same(answer: Any, rows: list[Row], weights: list[float], value: str, doubt: float) -> None:
    total = math.fsum(weights)
    if total == 0:
        assert answer.value is None, f"{answer.value!r} of rows that weigh nothing"
        return
    values = [row[value] for row in rows]
    effective = total**2 / math.fsum(w * w for w in weights)
    _near("effective rows", answer.effective_rows, effective, effective, doubt)
    if value == "label":
        shares: dict[str, float] = {}
        for weight, label in zip(weights, values, strict=True):
            shares[label] = shares.get(label, 0.0) + weight / total
        for label, share in shares.items():
            _near(f"share of {label}", answer.distribution.get(label, 0.0), share, 1.0, doubt)
        return
    size = max(map(abs, values))
    mean = math.fsum(w * v for w, v in zip(weights, values, strict=True)) / total
    _near("mean", answer.value, mean, size, doubt)
    spread = math.fsum(w * (v - mean) ** 2 for w, v in zip(weights, values, strict=True)) / total
    _near("deviation squared", answer.std**2, spread, size * size, doubt)


def _near(what: str, found: float, wanted: float, size: float, doubt: float) -> None:
    limit = (1e-9 + doubt) * size + 1e-300
    assert abs(found - wanted) <= limit, f"{what} is {found!r}, not {wanted!r}"
