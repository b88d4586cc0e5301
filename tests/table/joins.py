"""A soft join as two loops: what compiled and sorted ones must equal."""

from __future__ import annotations

import datetime as dt
import math
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from rapidfuzz import fuzz
from table.tables import kernel

#: How alike two keys are: a weight, from both and the parameters of the similarity.
Weigh = Callable[[Any, Any], float]


def spelt(text: str) -> str:
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


def fuzzy(cutoff: float, bandwidth: float = 0.05) -> Weigh:
    def weigh(left: str, right: str) -> float:
        ratio = fuzz.ratio(spelt(left), spelt(right)) / 100
        return math.exp(-(1 - ratio) / bandwidth) if ratio >= cutoff - 1e-12 else 0.0

    return weigh


def apart(left: Any, right: Any) -> float:
    difference = left - right
    if isinstance(difference, dt.timedelta):
        day = isinstance(left, dt.date) and not isinstance(left, dt.datetime)
        return abs(difference / dt.timedelta(days=1) if day else difference.total_seconds())
    return abs(float(difference))


@dataclass
class Near:
    """A kernel of the distance."""

    name: str
    bandwidth: float

    def far(self, left: Any, right: Any) -> float:
        return 0.0 if left == right else apart(left, right) / self.bandwidth

    def __call__(self, left: Any, right: Any) -> float:
        return kernel(self.name, min(self.far(left, right), 1e100))


near = Near


def equal(left: Any, right: Any) -> float:
    return 1.0 if left == right else 0.0


def distance(left: list[float], right: list[float]) -> float:
    return math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(left, right, strict=True)))


def missing(entry: Any) -> bool:
    if isinstance(entry, list):
        return any(missing(part) for part in entry)
    return entry is None or entry != entry


def matches(
    left: list[dict[str, Any]],
    right: list[dict[str, Any]],
    on: dict[tuple[str, str], Weigh],
    nearest: tuple[str, str] | None = None,
) -> list[list[tuple[float, int]]]:
    """For each left row, weight and number of each right row that matches, the heaviest first.

    Of equals the nearest comes first, and then the first.
    """
    found = []
    columns = [*on, *([nearest] if nearest else [])]
    for own in left:
        weights = {}
        for number, other in enumerate(right):
            if any(missing(own[a]) or missing(other[b]) for a, b in columns):
                continue
            weight = math.prod(weigh(own[a], other[b]) for (a, b), weigh in on.items())
            if weight > 0.0:
                weights[number] = weight
        if nearest and weights:
            far = {number: apart(own[nearest[0]], right[number][nearest[1]]) for number in weights}
            weights = {n: w for n, w in weights.items() if far[n] == min(far.values())}
        far = {
            number: math.fsum(
                weigh.far(own[a], right[number][b])
                for (a, b), weigh in on.items()
                if isinstance(weigh, Near)
            )
            for number in weights
        }
        order = sorted(weights, key=lambda number: (-weights[number], far[number], number))
        found.append([(weights[number], number) for number in order])
    return found


def mean(rows: list[tuple[float, int]], values: list[float | None]) -> float | None:
    """The weighted mean of the values that are there."""
    there = [(w, values[n]) for w, n in rows if not missing(values[n])]
    total = math.fsum(w for w, _ in there)
    return math.fsum(w * v for w, v in there if v is not None) / total if there else None
