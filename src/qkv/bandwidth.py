"""Search for the bandwidths of least error, whatever measures the error.

A point of the search holds the logarithm of each bandwidth, then any other parameters. Its score is
the logarithm of an error, so that differences of scores are relative errors. First all bandwidths
are moved together over a grid, then each coordinate separately, until the score no longer improves.
A line is searched by a grid, extended where the best point is at its end, and by ever finer steps
around the best points: curves of leave-one-out errors may have several local minima.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
Score: TypeAlias = Callable[[Array], float]

STEP = math.log(2)  # between places of the first grid
FINE = STEP / 16  # the same for one coordinate whose curve is rough
LEVELS = (3, 3, 2, 1, 1)  # local minima that are refined, halving the step each time
MORE = (8, 8, 6, 4, 2, 1)  # the same where the curve is rough
FEWER = (2, 1, 1)  # the same where there are several coordinates
FINER = (3, 3, 2, 2, 1, 1)  # the same where these are rough
MOST_GRID, STARTS = 256, 5  # places of a grid, and how many of them are starting points
GRID_EXAMPLES = 40_000  # places times examples that a grid may have
ROUNDS = 5  # times that every coordinate is searched separately
NOTHING = 1e-4  # a negligible difference of scores: a hundredth of a percent of the error
MOST_BEYOND = 40  # steps beyond an end of a grid
FEW = 3_000  # examples, up to which the error curve of a compact kernel is rough
VERY_FEW = 500  # examples, up to which a search should be thorough


class BandwidthWarning(UserWarning):
    """The training examples do not determine the bandwidth."""


class Axis(NamedTuple):
    """One coordinate of a point, and the interval in which it is searched."""

    low: float
    high: float
    start: float
    step: float
    endless: bool = False  # whether to continue beyond an end of the interval that scores best
    levels: tuple[int, ...] = LEVELS
    places: tuple[float, ...] = ()  # to be tried in addition to the grid

    def near(self, place: float) -> Axis:
        """The same, a step to either side."""
        low, high = place - self.step, place + self.step
        if not self.endless:
            low, high = max(low, self.low), min(high, self.high)
        return self._replace(low=low, high=high)


@dataclass
class Best:
    point: Array
    score: float
    narrowest: list[int]  # coordinates that do best at their lower end, or no worse
    widest: list[int]


class Spread(NamedTuple):
    """How far the keys of a column, or of several columns that form one vector, are spread."""

    rows: float
    unit: float  # their standard deviation
    extent: float  # the distance of the furthest
    dimensions: int = 1
    gap: float = math.inf  # for a line: a twentieth of the keys have a neighbour nearer than this


def span(points: Array, copies: Array, columns: int, compact: bool) -> Axis:
    """The interval of bandwidths to search for a key (m, d), one of so many columns."""
    extent = float(np.linalg.norm(np.ptp(points, axis=0))) if len(points) else 0.0
    gap = math.inf
    if columns == points.shape[1] == 1 and extent > 0:
        gaps = np.concatenate([[np.inf], np.diff(np.unique(points)), [np.inf]])
        gap = float(np.quantile(np.minimum(gaps[1:], gaps[:-1]), 0.05))
    unit, dimensions = scale(points, copies), points.shape[1]
    return span_of(Spread(float(copies.sum()), unit, extent, dimensions, gap), columns, compact)


def span_of(spread: Spread, columns: int, compact: bool) -> Axis:
    """The interval of bandwidths to search for keys of this spread, one of so many columns.

    From below the spacing of the keys to where all weights are nearly equal; the search continues
    beyond either end where that helps. A compact kernel has a rough curve, since keys leave its
    support one by one.
    """
    m, unit, extent, dimensions, gap = spread
    if extent == 0:
        return Axis(math.log(unit), math.log(unit), math.log(unit), STEP)
    spacing = min(extent * m ** (-1 / max(columns, dimensions)), gap / 4)
    low = min(spacing, unit * m ** (-1 / (columns + 4)) / 10)
    ends = math.log(low), math.log(3 * extent), math.log(unit)
    if columns > 1:
        return Axis(*ends, STEP, True, FINER if compact and m <= VERY_FEW else FEWER)
    if compact and m <= FEW:
        return Axis(*ends, FINE, True, MORE)
    return Axis(*ends, STEP, True)


def scale(points: Array, copies: Array) -> float:
    """The standard deviation of keys (m, d), of all their dimensions together; 1 if they agree."""
    if len(points) == 0 or not (np.ptp(points, axis=0) > 0).any():
        return 1.0
    centre = np.average(points, axis=0, weights=copies)
    variance = float(np.average(((points - centre) ** 2).sum(axis=1), weights=copies))
    return math.sqrt(variance) if variance > 0 else 1.0


def log_error(error: float, variance: float) -> float:
    """The score of a squared error, relative to the variance of the targets.

    Rounded, so that noise in the last digits decides nothing.
    """
    return round(math.log(error / variance + 1e-30), 10) if math.isfinite(error) else math.inf


def search(score: Score, axes: Sequence[Axis], together: int, grid: int = 0) -> Best:
    """The point of least score; the first `together` coordinates are at first moved as one.

    With a `grid` of so many places, the search also starts from the best of them: with few examples
    some local minima cannot be reached from one another along a line.
    """
    point = np.array([axis.start for axis in axes])
    if not axes:
        return Best(point, score(point), [], [])
    lowest, curves = math.inf, dict[int, _Curve]()
    if together:
        unit = max(axes[:together], key=lambda axis: axis.high - axis.low)
        from_start = unit._replace(
            low=unit.low - unit.start,
            high=unit.high - unit.start,
            start=0,
            places=tuple(place - unit.start for place in unit.places),
        )
        moved = np.where(np.arange(len(axes)) < together, 1.0, 0.0)
        curve = _Curve(lambda shift: score(point + shift * moved))
        shift, lowest = curve.least(from_start)
        point, curves[0] = point + shift * moved, curve
    if len(axes) > 1 or not together:
        point, lowest, curves = _one_by_one(score, axes, point, lowest, look_around=2)
        for start in _grid(score, axes, grid):
            other, error, _ = _one_by_one(score, axes, start, score(start), look_around=0)
            if error < lowest - NOTHING:
                point, lowest, curves = _one_by_one(score, axes, other, error, look_around=1)
    ends = [(place, curve.ends()) for place, curve in curves.items() if axes[place].endless]
    return Best(
        point,
        lowest,
        [place for place, (narrow, _) in ends if narrow],
        [place for place, (_, wide) in ends if wide],
    )


def affordable_grid(examples: float) -> int:
    """How many places a grid over so many examples may have; 0 if they are too many."""
    return min(MOST_GRID, int(GRID_EXAMPLES // max(examples, 1))) if examples <= VERY_FEW else 0


def _grid(score: Score, axes: Sequence[Axis], most: int) -> list[Array]:
    """The best places of a grid over all coordinates."""
    free = sum(axis.high > axis.low for axis in axes)
    each = int(most ** (1 / max(1, free)) + 1e-9)
    if each < 2:
        return []
    lines = [np.linspace(axis.low, axis.high, each if axis.high > axis.low else 1) for axis in axes]
    places = [np.array(place) for place in itertools.product(*lines)]
    return sorted(places, key=score)[:STARTS]


def _one_by_one(
    score: Score, axes: Sequence[Axis], point: Array, lowest: float, look_around: int
) -> tuple[Array, float, dict[int, _Curve]]:
    """Each coordinate in turn: for some rounds over its full axis, then only near the best."""
    curves: dict[int, _Curve] = {}
    for number in range(ROUNDS):
        before, from_here = lowest, point
        for place, axis in enumerate(axes):
            if axis.high == axis.low:
                continue

            def along(to: float, place: int = place, here: Array = point) -> float:
                moved = here.copy()
                moved[place] = to
                return score(moved)

            curve = _Curve(along)
            if math.isfinite(lowest):
                curve.scores[float(point[place])] = lowest
            if number < look_around:
                curves[place] = curve
            else:
                axis = axis.near(float(point[place]))
            best_place, error = curve.least(axis)
            if error < lowest:
                point = point.copy()
                point[place], lowest = best_place, error
        if not before - lowest > NOTHING:
            break
        further = point + (point - from_here)  # extrapolate the step of this round
        if number > 0 and _inside(further, axes) and (error := score(further)) < lowest:
            point, lowest = further, error
    return point, lowest, curves


def _inside(point: Array, axes: Sequence[Axis]) -> bool:
    return all(
        axis.endless or axis.low <= place <= axis.high
        for place, axis in zip(point, axes, strict=True)
    )


@dataclass
class _Curve:
    """Scores along a line, and the places where they have been evaluated."""

    at: Callable[[float], float]
    scores: dict[float, float] = field(default_factory=dict)

    def evaluate(self, place: float) -> float:
        place = float(place)
        if place not in self.scores:
            self.scores[place] = self.at(place)
        return self.scores[place]

    def best(self) -> float:
        """The best place; of equals, the last, which is the widest."""
        return min(self.scores, key=lambda place: (self.scores[place], -place))

    def ends(self) -> tuple[bool, bool]:
        """Whether no place does better than the first one; and than the last."""
        good = self.scores[self.best()] + NOTHING
        return self.scores[min(self.scores)] <= good, self.scores[max(self.scores)] <= good

    def least(self, axis: Axis) -> tuple[float, float]:
        """The best place and its score."""
        steps = max(1, math.ceil((axis.high - axis.low) / axis.step))
        for place in np.linspace(axis.low, axis.high, steps + 1):
            self.evaluate(place)
        for place in axis.places:
            self.evaluate(place)
        if axis.endless:
            self._go_on(-axis.step)
            self._go_on(axis.step)
        for valleys in axis.levels:
            self._refine(valleys)
        if axis.endless:
            self._look_beyond(axis.step)
        self._polish()
        best = self.best()
        return best, self.scores[best]

    def _go_on(self, step: float) -> None:
        for _ in range(MOST_BEYOND):
            places = sorted(self.scores, reverse=step < 0)
            end = self.scores[places[-1]]
            if end > self.scores[self.best()] or not self.scores[places[-2]] - end > NOTHING:
                return
            self.evaluate(places[-1] + step)

    def _look_beyond(self, step: float) -> None:
        """Confirm an end that scores as well as any place: the next place may not."""
        for _ in range(2):
            narrow, wide = self.ends()
            if narrow:
                self.evaluate(min(self.scores) - step)
            if wide:
                self.evaluate(max(self.scores) + step)

    def _refine(self, valleys: int) -> None:
        places = sorted(self.scores)
        scores = [math.inf, *(self.scores[place] for place in places), math.inf]
        bottoms = [
            at
            for at in range(len(places))
            if scores[at + 1] <= min(scores[at], scores[at + 2]) and math.isfinite(scores[at + 1])
        ]
        for at in sorted(bottoms, key=lambda at: (scores[at + 1], -at))[:valleys]:
            for neighbour in (at - 1, at + 1):
                if 0 <= neighbour < len(places):
                    self.evaluate((places[at] + places[neighbour]) / 2)

    def _polish(self) -> None:
        """Evaluate the minimum of the parabola through the best place and its neighbours."""
        for _ in range(2):
            places = sorted(self.scores)
            at = places.index(self.best())
            if not 0 < at < len(places) - 1:
                return
            left, middle, right = places[at - 1 : at + 2]
            down, up = (self.scores[each] - self.scores[middle] for each in (left, right))
            if not (math.isfinite(down + up) and down + up > 0):
                return
            back, forth = middle - left, right - middle
            shift = (down * forth**2 - up * back**2) / (2 * (down * forth + up * back))
            if abs(shift) > 1e-6:
                self.evaluate(middle + shift)
