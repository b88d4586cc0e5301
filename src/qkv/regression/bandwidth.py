"""How wide to look: rules of thumb, and searches that let the examples decide.

Searches run over log h between bounds that the data give, so no bandwidth is ever 0 or negative:
first one factor for all columns over a grid, then finer, then each column on its own.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import minimize_scalar

from qkv.regression.categories import most_smoothing
from qkv.regression.criteria import CRITERIA
from qkv.regression.examples import Array, Examples, Width
from qkv.regression.kernels import spread
from qkv.regression.local import LeaveOneOut
from qkv.regression.nearest import Nearest
from qkv.regression.progress import Progress
from qkv.similarity import Kernel

RULES = ("scott", "silverman")
GRID_STEP = math.log(2)  # between candidates on the first, coarse grid
FINER = 8  # candidates between the best of the grid and its neighbours
ROUNDS = 2  # times that every column is searched on its own
COLUMN_GRID, COLUMN_FINER = 5, 6  # as above, for each column
SHARES = 9  # smoothings tried for each categorical column, before finer ones


class Undecided(UserWarning):
    """The examples cannot say how wide to look."""


@dataclass
class Found:
    width: Width
    curve: Array  # (candidates, d + c + 1): bandwidths, smoothings, error; in order of trial


def find(examples: Examples, kernel: Kernel, wanted: Any, degree: int, verbose: bool) -> Found:
    """The width that `wanted` asks for: a number, one for each column, a rule or a criterion."""
    d, c = examples.keys.number.shape[1], len(examples.categories)
    none = np.zeros((0, d + c + 1))
    unsmoothed = _default_smoothing(examples)
    if isinstance(wanted, Nearest):
        return Found(Width(scales(examples), unsmoothed, min(wanted.k, _most(examples))), none)
    if not isinstance(wanted, str):
        return Found(Width(_checked(wanted, d), unsmoothed), none)
    if wanted in RULES:
        return Found(Width(rule(examples, kernel, wanted), unsmoothed), none)
    if wanted not in (*CRITERIA, "knn"):
        raise ValueError(
            f"bandwidth must be a positive number, one for each column, qkv.regression.Nearest(k), "
            f"or one of {', '.join((*CRITERIA, *RULES))}, knn; got {wanted!r}"
        )
    start = Width(rule(examples, kernel, "scott"), unsmoothed)
    if wanted == "knn":
        start = Width(scales(examples), unsmoothed, max(1, round(_most(examples) ** 0.5)))
    reason = _undecidable(examples)
    if reason is not None:
        _warn(reason)
        return Found(start, none)
    with Progress(verbose) as progress:
        left_out = LeaveOneOut(examples, kernel, degree)
        search = _Search(examples, left_out, "loo" if wanted == "knn" else wanted, progress)
        best = search.neighbors(start) if wanted == "knn" else search.bandwidth(start)
        best = search.smoothings(best)
    errors = [trial[-1] for trial in search.trials]
    if max(errors) - min(errors) <= 1e-12 * abs(max(errors)):
        _warn("every bandwidth does equally well")
        return Found(start, np.array(search.trials))
    return Found(best, np.array(search.trials))


def scales(examples: Examples) -> Array:
    """The standard deviation of each column; 1 where it is constant."""
    number = examples.keys.number
    if number.shape[1] == 0:
        return np.ones(0)
    centre = np.average(number, axis=0, weights=examples.weight)
    variance = np.average((number - centre) ** 2, axis=0, weights=examples.weight)
    extent = np.ptp(number, axis=0)
    return np.where((extent > 0) & (variance > 0), np.sqrt(variance), 1.0)


def rule(examples: Examples, kernel: Kernel, name: str) -> Array:
    """Scott's or Silverman's rule, for kernels that look as wide as the Gaussian of that width."""
    d = examples.keys.number.shape[1]
    factor = _count(examples) ** (-1 / (d + 4))
    if name == "silverman":
        factor *= (4 / (d + 2)) ** (1 / (d + 4))
    return np.asarray(scales(examples) * factor / spread(kernel))


def _count(examples: Examples) -> float:
    """How many observations there are: copies of rows, or as many as uneven weights amount to."""
    copies = examples.copies
    return float(max(copies.sum(), copies.sum() ** 2 / (copies**2).sum()))


def _most(examples: Examples) -> int:
    return max(1, round(_count(examples)) - 1)


def _checked(wanted: Any, d: int) -> Array:
    numbers = np.asarray(wanted, dtype=np.float64)
    if numbers.ndim > 1 or numbers.size not in ((1,) if numbers.ndim == 0 else (1, d)):
        raise ValueError(
            f"bandwidth must be one number or one for each of {d} numeric columns; "
            f"got shape {numbers.shape}"
        )
    for number in numbers.ravel():
        if not (number > 0 and math.isfinite(number)):
            raise ValueError(f"bandwidth must be positive and finite; got {number}")
    return np.full(d, numbers) if numbers.ndim == 0 else np.resize(numbers, d)


def _default_smoothing(examples: Examples) -> Array:
    """A tenth of the weight goes to other categories."""
    return np.array([0.1 * most_smoothing(count) for count in examples.categories])


def _undecidable(examples: Examples) -> str | None:
    """Why no search can tell one width from another."""
    number, target = examples.keys.number, examples.target
    if len(target) == 1:
        return "there is one example only"
    if np.all(target == target[0]):
        return "the target is constant"
    constant = number.shape[1] == 0 or np.all(number == number[0])
    if constant and np.all(examples.keys.code == examples.keys.code[:1]):
        return "all examples have the same key"
    return None


def _warn(reason: str) -> None:
    warnings.warn(
        f"the examples cannot decide the bandwidth: {reason}; Scott's rule stands in",
        Undecided,
        stacklevel=4,
    )


@dataclass
class _Search:
    examples: Examples
    left_out: LeaveOneOut
    criterion: str
    progress: Progress
    trials: list[list[float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        variance = np.average(
            (self.examples.target - self.examples.mean) ** 2, axis=0, weights=self.examples.weight
        ).mean()
        self.unit = 1.0 if self.criterion == "aicc" else float(variance)

    def error(self, width: Width) -> float:
        found = CRITERIA[self.criterion](self.examples, self.left_out.at(width))
        # Rounded to what can be told apart, so that noise in the last digits decides nothing.
        found = round(found / self.unit, 10) * self.unit
        looked = [width.neighbors] if width.neighbors is not None else width.bandwidth
        padded = np.resize(looked, width.bandwidth.size)
        self.trials.append([*padded, *width.smoothing, found])
        self.progress.heard(found, min(trial[-1] for trial in self.trials))
        return found

    def bandwidth(self, start: Width) -> Width:
        """One factor for all columns over a grid, then finer, then each column on its own."""
        d = start.bandwidth.size
        if d == 0:
            return start
        low, high = self._bounds(start)
        steps = math.ceil((np.max(high) - np.max(low)) / GRID_STEP)
        factors = np.linspace(np.max(low), np.max(high), steps + 1)
        alone = ROUNDS * d * (COLUMN_GRID + COLUMN_FINER) if d > 1 else 0
        self.progress.expect(factors.size + FINER + alone)

        def along(factor: float) -> Width:
            return start._replace(bandwidth=start.bandwidth * math.exp(factor))

        best, lowest = self._line(along, factors)
        found = along(best)
        if d == 1:
            self._tell_if_at(best, float(factors[0]))
            return found
        for _ in range(ROUNDS):
            before = lowest
            for column in range(d):

                def one(logarithm: float, column: int = column, found: Width = found) -> Width:
                    changed = found.bandwidth.copy()
                    changed[column] = start.bandwidth[column] * math.exp(logarithm)
                    return found._replace(bandwidth=changed)

                places = np.linspace(low[column], high[column], COLUMN_GRID)
                logarithm, error = self._line(one, places, COLUMN_FINER)
                if error < lowest:
                    found, lowest = one(logarithm), error
            if lowest > before - 1e-3 * abs(before):
                break
        return found

    def neighbors(self, start: Width) -> Width:
        """The number of neighbours, over numbers that grow by about a fifth."""
        most = _most(self.examples)
        counts = np.unique(np.geomspace(1, most, min(most, 40)).round().astype(int))
        self.progress.expect(counts.size)
        errors = [self.error(start._replace(neighbors=int(count))) for count in counts]
        return start._replace(neighbors=int(counts[int(np.argmin(errors))]))

    def smoothings(self, found: Width) -> Width:
        """How much each categorical column looks at other categories, one after the other."""
        several = [(at, count) for at, count in enumerate(self.examples.categories) if count > 1]
        self.progress.expect(len(several) * (SHARES + COLUMN_FINER))
        for column, count in several:

            def one(share: float, column: int = column, found: Width = found) -> Width:
                changed = found.smoothing.copy()
                changed[column] = share
                return found._replace(smoothing=changed)

            share, _ = self._line(
                one, np.linspace(0.0, most_smoothing(count), SHARES), COLUMN_FINER
            )
            found = one(share)
        return found

    def _line(
        self, along: Callable[[float], Width], grid: Array, finer_steps: int = FINER
    ) -> tuple[float, float]:
        """The best place on a grid, or between its neighbours; and its error."""
        errors = [self.error(along(float(place))) for place in grid]
        at = len(errors) - 1 - int(np.argmin(errors[::-1]))  # of equals, the widest
        low, high = grid[max(0, at - 1)], grid[min(len(grid) - 1, at + 1)]
        finer = minimize_scalar(
            lambda place: self.error(along(float(place))),
            bounds=(low, high),
            method="bounded",
            options={"maxiter": finer_steps, "xatol": 2e-3 * (high - low)},
        )
        if finer.fun < errors[at]:
            return float(finer.x), float(finer.fun)
        return float(grid[at]), float(errors[at])

    def _bounds(self, start: Width) -> tuple[Array, Array]:
        """Logarithms of factors on `start`: from the spacing of keys to where all look alike."""
        d = start.bandwidth.size
        extent = np.ptp(self.examples.keys.number, axis=0)
        extent = np.where(extent > 0, extent, start.bandwidth)
        spacing = extent * _count(self.examples) ** (-1 / d)
        low = np.log(np.minimum(spacing, start.bandwidth / 10) / start.bandwidth)
        return low, np.log(3 * extent / start.bandwidth)

    def _tell_if_at(self, best: float, edge: float) -> None:
        key = self.examples.keys.number
        if best <= edge + 0.05 and len(np.unique(key)) < len(key):
            warnings.warn(
                "the error keeps falling as the bandwidth does, down to the spacing of the keys: "
                "examples with equal keys may be copies of each other",
                Undecided,
                stacklevel=5,
            )
