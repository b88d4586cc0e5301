"""Tables to ask, and the plain formula that answers must equal."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa


def people(rows: int = 331, seed: int = 3) -> pa.Table:
    """Keys and values of every kind."""
    rng = np.random.default_rng(seed)
    return pa.table(
        {
            "age": rng.integers(18, 90, rows),
            "height": rng.normal(1.7, 0.1, rows),
            "name": [f"{'ABCDEFG'[a]}{b}" for a, b in rng.integers(0, [7, 50], (rows, 2))],
            "born": pa.array(rng.integers(-5000, 15000, rows).astype("datetime64[D]")),
            "seen": pa.array(rng.integers(0, 10**18, rows), pa.timestamp("ns")),
            "alive": rng.random(rows) < 0.7,
            "town": pa.array(rng.choice(["Rome", "Oslo", "Kyiv"], rows)).dictionary_encode(),
            "place": pa.FixedSizeListArray.from_arrays(pa.array(rng.normal(size=3 * rows)), 3),
            "income": rng.normal(40.0, 9.0, rows),
        }
    )  # fmt: skip


def kernel(name: str, u: float) -> float:
    """The kernel of a distance in bandwidths."""
    return {
        "gaussian": math.exp(-0.5 * u * u),
        "laplacian": math.exp(-abs(u)),
        "boxcar": 1.0 if abs(u) <= 1 else 0.0,
        "triangular": max(0.0, 1 - abs(u)),
        "epanechnikov": max(0.0, 1 - u * u),
        "equal": 1.0 if u == 0 else 0.0,
    }[name]


def pooled(weights: list[float], values: list[float]) -> tuple[float, float, float] | None:
    """Mean, deviation and effective rows, by slow sums; None where nothing weighs."""
    total = math.fsum(weights)
    if total == 0:
        return None
    mean = math.fsum(w * v for w, v in zip(weights, values, strict=True)) / total
    spread = math.fsum(w * (v - mean) ** 2 for w, v in zip(weights, values, strict=True)) / total
    return mean, math.sqrt(spread), total**2 / math.fsum(w * w for w in weights)


def shares(weights: list[float], values: list[Any]) -> dict[Any, float]:
    """The weight of each distinct value."""
    total = math.fsum(weights)
    found: dict[Any, float] = {}
    for weight, value in zip(weights, values, strict=True):
        if weight > 0:
            found[value] = found.get(value, 0.0) + weight / total
    return found
