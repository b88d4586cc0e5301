"""The choice of a bandwidth: rules of thumb, and criteria that are minimised over the examples.

The search itself is that of :mod:`qkv.bandwidth`, over log h: no bandwidth is ever 0 or negative.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np

from qkv.bandwidth import (
    STEP,
    Axis,
    BandwidthWarning,
    Best,
    affordable_grid,
    log_error,
    scale,
    search,
    span,
)
from qkv.regression.adaptive_bandwidth import Nearest
from qkv.regression.criteria import CRITERIA, along
from qkv.regression.kernels import spread
from qkv.regression.local import LeaveOneOut
from qkv.regression.progress import SearchProgress
from qkv.regression.training_data import Array, TrainingData, Width
from qkv.similarity import Boxcar, CompactKernel, Kernel
from qkv.staircase import MOST_KEYS, lowest, staircase

RULES = ("scott", "silverman")
SMOOTHING_STEPS = 6  # places of the first grid of each smoothing


@dataclass
class ChosenBandwidth:
    width: Width
    curve: Array  # (candidates, d + c + 1): bandwidths, smoothings, error; in order of trial


class Facts(NamedTuple):
    """What rules of thumb need, and whether a search can determine the width."""

    rows: float  # observations: copies of rows, or as many as uneven weights amount to
    unit: Array  # (d,): the standard deviation of each column; 1 where it is constant
    variance: float  # of the targets, the mean over their columns
    undecidable: str | None  # why no search can determine it

    @classmethod
    def of(cls, examples: TrainingData) -> Facts:
        square = (examples.target - examples.mean) ** 2
        variance = float(np.average(square, axis=0, weights=examples.weight).mean())
        return cls(_count(examples), scales(examples), variance, _undecidable_reason(examples))

    @property
    def most_neighbors(self) -> int:
        return max(1, round(self.rows) - 1)


class Judge(Protocol):
    """Says which widths to search, and evaluates the error of a width."""

    def axes(self, start: Width, criterion: str) -> list[Axis]: ...

    def error(self, width: Width, criterion: str) -> float: ...


def find(
    examples: TrainingData,
    kernel: Kernel,
    requested: Any,
    degree: int,
    smoothing: Array | None,
    verbose: bool,
) -> ChosenBandwidth:
    """The requested width: a number, one for each column, or by a rule or a criterion.

    `smoothing` is that of each categorical column, if it is set and not to be searched for.
    """
    d = examples.keys.number.shape[1]
    unsmoothed = _default_smoothing(examples) if smoothing is None else smoothing
    if not isinstance(requested, (str, Nearest)):
        no_curve = np.zeros((0, d + len(unsmoothed) + 1))
        return ChosenBandwidth(Width(checked(requested, d), unsmoothed), no_curve)
    judge = _LocalJudge(examples, kernel, degree, smoothing is not None)
    return choose(Facts.of(examples), kernel, requested, unsmoothed, judge, verbose)


def choose(
    facts: Facts, kernel: Kernel, requested: str | Nearest, smoothing: Array, judge: Judge,
    verbose: bool,
) -> ChosenBandwidth:  # fmt: skip
    """The width by a rule, by a number of neighbours, or by a criterion that `judge` evaluates."""
    no_curve = np.zeros((0, len(facts.unit) + len(smoothing) + 1))
    start = Width(facts.unit, smoothing)
    if isinstance(requested, Nearest):
        return ChosenBandwidth(
            start._replace(neighbors=min(requested.k, facts.most_neighbors)), no_curve
        )
    if requested in RULES:
        return ChosenBandwidth(start._replace(bandwidth=rule(facts, kernel, requested)), no_curve)
    if requested not in (*CRITERIA, "knn"):
        raise ValueError(
            f"bandwidth must be a positive number, one for each column, qkv.regression.Nearest(k), "
            f"or one of {', '.join((*CRITERIA, *RULES))}, knn; got {requested!r}"
        )
    if requested == "knn":
        start = start._replace(neighbors=max(1, round(facts.most_neighbors**0.5)))
    if facts.undecidable is not None:
        return ChosenBandwidth(_stand_in(facts.undecidable, facts, kernel, start), no_curve)
    with SearchProgress(verbose) as progress:
        criterion = "loo" if requested == "knn" else requested
        trials = _Trials(judge, criterion, start, facts.variance, progress)
        axes = judge.axes(start, criterion)
        progress.expect(sum(30 + 10 * (len(axes) > 1) for _ in axes))
        best = search(trials.score, axes, trials.together, affordable_grid(facts.rows))
    curve = np.array(trials.rows)
    if not math.isfinite(best.score):
        reason = f"{facts.rows:g} are too few for bandwidth={requested!r}"
        return ChosenBandwidth(_stand_in(reason, facts, kernel, start), curve)
    if np.ptp([score for score in trials.scores if math.isfinite(score)]) < 1e-9:
        reason = "every bandwidth does equally well"
        return ChosenBandwidth(_stand_in(reason, facts, kernel, start), curve)
    width = trials.width(best.point)
    if requested != "knn":
        _warn_of_ends(best, width.bandwidth)
    return ChosenBandwidth(width, curve)


def scales(examples: TrainingData) -> Array:
    """The standard deviation of each column; 1 where it is constant."""
    columns = range(examples.keys.number.shape[1])
    return np.array([scale(*examples.present(column)) for column in columns])


def rule(facts: Facts, kernel: Kernel, name: str) -> Array:
    """Scott's or Silverman's rule, for kernels as wide as the Gaussian of that bandwidth."""
    d = len(facts.unit)
    factor = facts.rows ** (-1 / (d + 4))
    if name == "silverman":
        factor *= (4 / (d + 2)) ** (1 / (d + 4))
    return np.asarray(facts.unit * factor / spread(kernel))


def _count(examples: TrainingData) -> float:
    copies = examples.copies
    return float(max(copies.sum(), copies.sum() ** 2 / (copies**2).sum()))


def checked(requested: Any, d: int) -> Array:
    numbers = np.asarray(requested, dtype=np.float64)
    if numbers.ndim > 1 or numbers.size not in ((1,) if numbers.ndim == 0 else (1, d)):
        raise ValueError(
            f"bandwidth must be one number or one for each of {d} numeric columns; "
            f"got shape {numbers.shape}"
        )
    for number in numbers.ravel():
        if not (number > 0 and math.isfinite(number)):
            raise ValueError(f"bandwidth must be positive and finite; got {number}")
    return np.full(d, numbers) if numbers.ndim == 0 else np.resize(numbers, d)


def _default_smoothing(examples: TrainingData) -> Array:
    """A tenth of the maximum."""
    return np.array([0.1 * category.most_smoothing for category in examples.categories])


def _undecidable_reason(examples: TrainingData) -> str | None:
    """Why no search can determine the width; None if one can."""
    number, target = examples.keys.number, examples.target
    if len(target) == 1:
        return "there is one example only"
    if np.all(target == target[0]):
        return "the target is constant"
    constant = number.shape[1] == 0 or np.all(number == number[0])
    if constant and np.all(examples.keys.code == examples.keys.code[:1]):
        return "all examples have the same key"
    return None


def _stand_in(reason: str, facts: Facts, kernel: Kernel, start: Width) -> Width:
    """The width where none can be determined, and a warning."""
    warnings.warn(
        f"the examples do not determine the bandwidth: {reason}; Scott's rule is used instead",
        BandwidthWarning,
        stacklevel=6,
    )
    if start.neighbors is not None:
        return start
    return start._replace(bandwidth=rule(facts, kernel, "scott"))


def _warn_of_ends(best: Best, bandwidth: Array) -> None:
    for place in best.narrowest:
        which = "" if bandwidth.size == 1 else f" of column {place} (of the numeric ones)"
        warnings.warn(
            f"the narrowest bandwidth{which} does best, {bandwidth[place]:.3g}, and narrower ones "
            "do no worse: the nearest neighbours alone predict each example best, as they do where "
            "examples are duplicated or free of noise",
            BandwidthWarning,
            stacklevel=6,
        )
    if bandwidth.size and len(best.widest) == bandwidth.size:
        warnings.warn(
            "the widest bandwidth does best, and wider ones no worse: all examples together "
            "predict each as well as those near it, so the target may not depend on its distance",
            BandwidthWarning,
            stacklevel=6,
        )


@dataclass
class _LocalJudge:
    """Evaluates errors on examples in this process."""

    examples: TrainingData
    kernel: Kernel
    degree: int
    smoothed: bool  # whether the smoothings are set

    @cached_property
    def left_out(self) -> LeaveOneOut:
        return LeaveOneOut(self.examples, self.kernel, self.degree)

    def axes(self, start: Width, criterion: str) -> list[Axis]:
        if start.neighbors is None:
            d, compact = len(start.bandwidth), isinstance(self.kernel, CompactKernel)
            axes = [span(*self.examples.present(column), d, compact) for column in range(d)]
            if d == 1:
                axes[0] = axes[0]._replace(places=tuple(np.log(self._steps(criterion))))
        else:
            most = math.log(max(1, round(_count(self.examples)) - 1))
            axes = [Axis(0.0, most, math.log(start.neighbors), STEP / 2)]
        for category, share in zip(self.examples.categories, start.smoothing, strict=True):
            most = category.most_smoothing
            axis = Axis(0.0, most, float(share), max(most, 1e-9) / SMOOTHING_STEPS)
            # One that the user set stays.
            axes.append(axis._replace(low=axis.start, high=axis.start) if self.smoothed else axis)
        return axes

    def error(self, width: Width, criterion: str) -> float:
        return CRITERIA[criterion](self.examples, self.left_out.at(width))

    def _steps(self, criterion: str) -> Array:
        """The lowest steps of the curve, where it has steps."""
        keys = self.examples.keys
        steps = isinstance(self.kernel, Boxcar) and not keys.code.size and not keys.some_missing
        if not steps or len(keys) > MOST_KEYS:
            return np.empty(0)
        copies = self.examples.copies
        degree = 0 if self.left_out.frame is None else 1
        stairs = staircase(keys.number[:, 0], self.examples.target, copies, degree)
        return lowest(stairs.width, along(stairs, criterion, copies.sum()))


@dataclass
class _Trials:
    """Widths as points of the search, and their errors."""

    judge: Judge
    criterion: str
    start: Width
    variance: float
    progress: SearchProgress
    rows: list[list[float]] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)
    errors: dict[tuple[float, ...], float] = field(default_factory=dict)

    @property
    def together(self) -> int:
        """How many coordinates are bandwidths, or the one number of neighbours."""
        return self.start.bandwidth.size if self.start.neighbors is None else 1

    def width(self, point: Array) -> Width:
        widths, smoothing = point[: self.together], point[self.together :]
        if self.start.neighbors is not None:
            count = max(1, round(math.exp(widths[0])))
            return self.start._replace(neighbors=count, smoothing=smoothing)
        return self.start._replace(bandwidth=np.exp(widths), smoothing=smoothing)

    def score(self, point: Array) -> float:
        width = self.width(point)
        widths = [width.neighbors] if width.neighbors is not None else width.bandwidth
        point_key = (*map(float, widths), *width.smoothing)
        if point_key not in self.errors:
            error = self.judge.error(width, self.criterion)
            self.errors[point_key] = self._as_score(error)
            self.rows.append([*np.resize(widths, width.bandwidth.size), *width.smoothing, error])
            self.scores.append(self.errors[point_key])
            self.progress.update(error, min(row[-1] for row in self.rows))
        return self.errors[point_key]

    def _as_score(self, error: float) -> float:
        # Akaike's criterion is already a logarithm.
        return round(error, 10) if self.criterion == "aicc" else log_error(error, self.variance)
