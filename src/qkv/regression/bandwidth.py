"""How wide to look: rules of thumb, and criteria by which the examples decide.

The search itself is that of :mod:`qkv.bandwidth`, over log h: no bandwidth is ever 0 or negative.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass, field
from typing import Any

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


def find(
    examples: TrainingData,
    kernel: Kernel,
    wanted: Any,
    degree: int,
    smoothing: Array | None,
    verbose: bool,
) -> ChosenBandwidth:
    """The width that `wanted` asks for: a number, one for each column, a rule or a criterion.

    `smoothing` is that of each categorical column, if it was set and is not to be searched for.
    """
    d, c = examples.keys.number.shape[1], len(examples.categories)
    none = np.zeros((0, d + c + 1))
    unsmoothed = _default_smoothing(examples) if smoothing is None else smoothing
    if isinstance(wanted, Nearest):
        return ChosenBandwidth(
            Width(scales(examples), unsmoothed, min(wanted.k, _most(examples))), none
        )
    if not isinstance(wanted, str):
        return ChosenBandwidth(Width(checked(wanted, d), unsmoothed), none)
    if wanted in RULES:
        return ChosenBandwidth(Width(rule(examples, kernel, wanted), unsmoothed), none)
    if wanted not in (*CRITERIA, "knn"):
        raise ValueError(
            f"bandwidth must be a positive number, one for each column, qkv.regression.Nearest(k), "
            f"or one of {', '.join((*CRITERIA, *RULES))}, knn; got {wanted!r}"
        )
    start = Width(scales(examples), unsmoothed)
    if wanted == "knn":
        start = start._replace(neighbors=max(1, round(_most(examples) ** 0.5)))
    reason = _undecidable(examples)
    if reason is not None:
        return ChosenBandwidth(_stand_in(reason, examples, kernel, start), none)
    with SearchProgress(verbose) as progress:
        left_out = LeaveOneOut(examples, kernel, degree)
        trials = _Trials(examples, left_out, "loo" if wanted == "knn" else wanted, start, progress,
                         smoothed=smoothing is not None)  # fmt: skip
        grid = affordable_grid(len(examples.target))
        best = search(trials.score, trials.axes(), trials.together, grid)
    curve = np.array(trials.rows)
    if not math.isfinite(best.score):
        reason = f"{len(examples.target)} are too few for bandwidth={wanted!r}"
        return ChosenBandwidth(_stand_in(reason, examples, kernel, start), curve)
    if np.ptp([score for score in trials.scores if math.isfinite(score)]) < 1e-9:
        reason = "every bandwidth does equally well"
        return ChosenBandwidth(_stand_in(reason, examples, kernel, start), curve)
    found = trials.width(best.point)
    if wanted != "knn":
        _tell_of_ends(best, found.bandwidth)
    return ChosenBandwidth(found, curve)


def scales(examples: TrainingData) -> Array:
    """The standard deviation of each column; 1 where it is constant."""
    columns = range(examples.keys.number.shape[1])
    return np.array([scale(*examples.present(column)) for column in columns])


def rule(examples: TrainingData, kernel: Kernel, name: str) -> Array:
    """Scott's or Silverman's rule, for kernels that look as wide as the Gaussian of that width."""
    d = examples.keys.number.shape[1]
    factor = _count(examples) ** (-1 / (d + 4))
    if name == "silverman":
        factor *= (4 / (d + 2)) ** (1 / (d + 4))
    return np.asarray(scales(examples) * factor / spread(kernel))


def _count(examples: TrainingData) -> float:
    """How many observations there are: copies of rows, or as many as uneven weights amount to."""
    copies = examples.copies
    return float(max(copies.sum(), copies.sum() ** 2 / (copies**2).sum()))


def _most(examples: TrainingData) -> int:
    return max(1, round(_count(examples)) - 1)


def checked(wanted: Any, d: int) -> Array:
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


def _default_smoothing(examples: TrainingData) -> Array:
    """A tenth of the weight goes to other categories."""
    return np.array([0.1 * category.most_smoothing for category in examples.categories])


def _undecidable(examples: TrainingData) -> str | None:
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


def _stand_in(reason: str, examples: TrainingData, kernel: Kernel, start: Width) -> Width:
    """The width where none can be found, and a warning."""
    warnings.warn(
        f"the examples cannot decide the bandwidth: {reason}; Scott's rule stands in",
        BandwidthWarning,
        stacklevel=5,
    )
    if start.neighbors is not None:
        return start
    return start._replace(bandwidth=rule(examples, kernel, "scott"))


def _tell_of_ends(best: Best, bandwidth: Array) -> None:
    for place in best.narrowest:
        which = "" if bandwidth.size == 1 else f" of column {place} (of the numeric ones)"
        warnings.warn(
            f"the narrowest bandwidth{which} does best, {bandwidth[place]:.3g}, and narrower ones "
            "do no worse: the nearest neighbours alone predict each example best, as where "
            "examples are copies of each other or hold no noise",
            BandwidthWarning,
            stacklevel=4,
        )
    if bandwidth.size and len(best.widest) == bandwidth.size:
        warnings.warn(
            "the widest bandwidth does best, and wider ones no worse: all examples together "
            "predict each as well as those near it, so the target may not depend on its distance",
            BandwidthWarning,
            stacklevel=4,
        )


@dataclass
class _Trials:
    """Widths as points of the search, and what was found of them."""

    examples: TrainingData
    left_out: LeaveOneOut
    criterion: str
    start: Width
    progress: SearchProgress
    smoothed: bool  # whether the smoothings are set
    rows: list[list[float]] = field(default_factory=list)
    scores: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.variance = float(
            np.average(
                (self.examples.target - self.examples.mean) ** 2,
                axis=0,
                weights=self.examples.weight,
            ).mean()
        )
        self.known: dict[tuple[float, ...], float] = {}

    @property
    def together(self) -> int:
        """How many coordinates are bandwidths, or the one number of neighbours."""
        return self.start.bandwidth.size if self.start.neighbors is None else 1

    def axes(self) -> list[Axis]:
        if self.start.neighbors is None:
            d, compact = len(self.start.bandwidth), isinstance(self.left_out.kernel, CompactKernel)
            axes = [span(*self.examples.present(column), d, compact) for column in range(d)]
            if d == 1:
                axes[0] = axes[0]._replace(places=tuple(np.log(self._steps())))
        else:
            most = math.log(_most(self.examples))
            axes = [Axis(0.0, most, math.log(self.start.neighbors), STEP / 2)]
        for category, share in zip(self.examples.categories, self.start.smoothing, strict=True):
            most = category.most_smoothing
            axis = Axis(0.0, most, float(share), max(most, 1e-9) / SMOOTHING_STEPS)
            # One that the user set stays.
            axes.append(axis._replace(low=axis.start, high=axis.start) if self.smoothed else axis)
        self.progress.expect(sum(30 + 10 * (len(axes) > 1) for _ in axes))
        return axes

    def _steps(self) -> Array:
        """The lowest steps of the curve, where it has steps."""
        keys, kernel = self.examples.keys, self.left_out.kernel
        steps = isinstance(kernel, Boxcar) and not keys.code.size and not keys.some_missing
        if not steps or len(keys) > MOST_KEYS:
            return np.empty(0)
        copies = self.examples.copies
        degree = 0 if self.left_out.frame is None else 1
        stairs = staircase(keys.number[:, 0], self.examples.target, copies, degree)
        return lowest(stairs.width, along(stairs, self.criterion, copies.sum()))

    def width(self, point: Array) -> Width:
        widths, smoothing = point[: self.together], point[self.together :]
        if self.start.neighbors is not None:
            count = max(1, round(math.exp(widths[0])))
            return self.start._replace(neighbors=count, smoothing=smoothing)
        return self.start._replace(bandwidth=np.exp(widths), smoothing=smoothing)

    def score(self, point: Array) -> float:
        width = self.width(point)
        looked = [width.neighbors] if width.neighbors is not None else width.bandwidth
        name = (*map(float, looked), *width.smoothing)
        if name not in self.known:
            error = CRITERIA[self.criterion](self.examples, self.left_out.at(width))
            self.known[name] = self._as_score(error)
            self.rows.append([*np.resize(looked, width.bandwidth.size), *width.smoothing, error])
            self.scores.append(self.known[name])
            self.progress.heard(error, min(row[-1] for row in self.rows))
        return self.known[name]

    def _as_score(self, error: float) -> float:
        # Akaike's criterion is a logarithm already.
        return round(error, 10) if self.criterion == "aicc" else log_error(error, self.variance)
