"""The search for a bandwidth by examples that stay on the workers of a Dask cluster.

A leave-one-out prediction is merged from the predictions of each part for each part: the rows of
two parts meet on a worker, and sums of errors come back. The search is that of one machine, on the
same scores; it rounds them, so the order of summation decides nothing.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qkv.bandwidth import Axis, Spread, span_of
from qkv.cluster import jobs
from qkv.optional_dependencies import require
from qkv.regression import bandwidth, local
from qkv.regression.bandwidth import ChosenBandwidth, Facts
from qkv.regression.criteria import along
from qkv.regression.distributed import DistributedData, PartialMean, merge_all
from qkv.regression.kernels import height
from qkv.regression.pool import LeaveOneOutPool
from qkv.regression.training_data import Array, Keys, TrainingData, Width
from qkv.similarity import CompactKernel, Kernel
from qkv.staircase import MOST_KEYS, Staircase

_BITS = 13  # of a number that are decided in one pass over all parts
_NO_SMOOTHING = np.empty(0)


def find(data: DistributedData, kernel: Kernel, requested: str, verbose: bool) -> ChosenBandwidth:
    """The width that a rule or a criterion asks for."""
    if data.summary.rows <= MOST_KEYS:  # fewer than are worth a cluster
        examples = jobs.fold(data.client, _as_is, data.parts, None, _side_by_side)
        return bandwidth.find(examples, kernel, requested, 0, None, verbose)
    facts, judge = _facts(data), _DistributedJudge(data, kernel)
    return bandwidth.choose(facts, kernel, requested, _NO_SMOOTHING, judge, verbose)


def _facts(data: DistributedData) -> Facts:
    summary = data.summary
    centre = (summary.number.sum / summary.rows, summary.target.sum / summary.rows - data.pivot)
    number, target = jobs.fold(data.client, _squares, data.parts, centre, _added)
    unit = np.sqrt(number / summary.rows)
    reason = None
    if np.all(summary.target.low == summary.target.high):
        reason = "the target is constant"
    elif np.all(summary.number.low == summary.number.high):
        reason = "all examples have the same key"
    unit = np.where(unit > 0, unit, 1.0)
    return Facts(float(summary.rows), unit, float((target / summary.rows).mean()), reason)


class _Question(NamedTuple):
    kernel: Kernel
    width: Width
    rows: int
    mean: Array  # of all targets, less the pivot


class _Errors(NamedTuple):
    """Sums over examples, the mean over columns of the target."""

    left_out: float  # squared differences from what the others say
    fitted: float  # the same from the fit itself
    trace: float  # of the smoother

    def merge(self, other: _Errors) -> _Errors:
        return _Errors(*(a + b for a, b in zip(self, other, strict=True)))


class _DistributedJudge:
    """Evaluates errors on examples that stay on the workers."""

    def __init__(self, data: DistributedData, kernel: Kernel) -> None:
        self.data, self.kernel = data, kernel

    def axes(self, start: Width, criterion: str) -> list[Axis]:
        summary, compact = self.data.summary, isinstance(self.kernel, CompactKernel)
        d = len(start.bandwidth)
        extent = summary.number.high - summary.number.low
        gap = self._gap if d == 1 and extent[0] > 0 else math.inf
        spreads = [
            Spread(float(summary.rows), float(unit), float(far), gap=gap)
            for unit, far in zip(start.bandwidth, extent, strict=True)
        ]
        return [span_of(spread, d, compact) for spread in spreads]

    def error(self, width: Width, criterion: str) -> float:
        data, dask = self.data, require("dask", "cluster")
        summary = data.summary
        mean = summary.target.sum / summary.rows - data.pivot
        question = dask.delayed(_Question(self.kernel, width, summary.rows, mean), traverse=False)
        predict = dask.delayed(_predictions, pure=False)
        sum_errors = dask.delayed(_errors, pure=False)
        error_sums = [
            sum_errors(
                part,
                [predict(part, other, part is other, question) for other in data.parts],
                question,
            )
            for part in data.parts
        ]
        sums = jobs.fold(data.client, _as_is, error_sums, None, _Errors.merge)
        left_out, fitted, trace = (np.array([each]) for each in sums)
        stairs = Staircase(width.bandwidth[:1], left_out, fitted, trace)
        return float(along(stairs, criterion, float(summary.rows))[0])

    @cached_property
    def _gap(self) -> float:
        """The distance below which a twentieth of the distinct keys of a line have a neighbour."""
        data, dask = self.data, require("dask", "cluster")
        near, all_near = dask.delayed(_near, pure=False), dask.delayed(_all_near, pure=False)
        places = list(enumerate(data.parts))
        pairs = [[near(part, other, place < at) for place, other in places] for at, part in places]
        gaps = data.client.compute([all_near(distances) for distances in pairs])
        count = jobs.fold(data.client, _length, gaps, None, _plus)
        place = 0.05 * (count - 1)
        below = math.floor(place)
        ends = [_smallest(data.client, gaps, min(at, count - 1)) for at in (below, below + 1)]
        return float(np.quantile(ends, place - below))


def _smallest(client: Any, parts: list[Any], place: int) -> float:
    """The number at this place if all numbers, which are positive, were sorted.

    Positive numbers are ordered as their bits are: these are decided from the highest on, by
    counting how many numbers begin so.
    """
    start, bits = 0, 63
    while bits > 0:
        fewer = max(0, bits - _BITS)
        counts = jobs.fold(client, _counted, parts, (start, bits, fewer), _plus)
        reached = np.cumsum(counts)
        bucket = int(np.searchsorted(reached, place, side="right"))
        place -= int(reached[bucket - 1]) if bucket else 0
        start, bits = start + (bucket << fewer), fewer
    return float(np.int64(start).view(np.float64))


def _counted(gaps: Array, prefix: tuple[int, int, int]) -> npt.NDArray[np.int64]:
    """How many numbers have each continuation, down to the bit `fewer`, of the bits in `start`."""
    start, bits, fewer = prefix
    words = gaps.view(np.int64)
    inside = words[(words >> bits) == (start >> bits)]
    return np.bincount((inside - start) >> fewer, minlength=1 << (bits - fewer))


def _near(
    part: TrainingData, other: TrainingData, before: bool
) -> tuple[Array, npt.NDArray[np.bool_]]:
    """Each distinct key's distance to the nearest other one of `other`, and whether to count it:
    one that stands in an earlier part too is counted there."""
    keys, theirs = np.unique(part.keys.number), np.unique(other.keys.number)
    first, last = (np.searchsorted(theirs, keys, side=side) for side in ("left", "right"))
    fenced = np.concatenate([[-np.inf], theirs, [np.inf]])
    distance = np.minimum(keys - fenced[first], fenced[last + 1] - keys)
    return distance, ~((first < last) & before)


def _all_near(parts: list[tuple[Array, npt.NDArray[np.bool_]]]) -> Array:
    distances, counted = zip(*parts, strict=True)
    counted_distances = np.minimum.reduce(distances)[np.logical_and.reduce(counted)]
    return np.ascontiguousarray(counted_distances)


def _predictions(
    part: TrainingData, other: TrainingData, itself: bool, question: _Question
) -> PartialMean:
    """Predictions for the examples of `part` from those of `other`, leaving each itself out."""
    if not itself:
        return PartialMean(*local.fit(other, question.kernel, question.width, part.keys, degree=0))
    pooled, _ = LeaveOneOutPool(part, question.kernel, part.target).without_itself(question.width)
    return PartialMean(pooled.answer, pooled.log_total)


def _errors(part: TrainingData, predictions: list[PartialMean], question: _Question) -> _Errors:
    merged, rows = merge_all(predictions), question.rows
    self_weight = height(question.kernel)
    with np.errstate(over="ignore"):
        leverage = self_weight / (self_weight + np.exp(merged.log_total))[:, None]
    alone = (merged.log_total == -np.inf)[:, None]
    rest = (rows * question.mean - part.target) / max(1, rows - 1)
    residual = part.target - np.where(alone, rest, merged.answer)
    fitted = residual * (1 - leverage)
    k = part.target.shape[1]
    return _Errors(float((residual**2).sum() / k), float((fitted**2).sum() / k),
                   float(leverage.sum()))  # fmt: skip


def _squares(part: TrainingData, centre: tuple[Array, Array]) -> tuple[Array, Array]:
    number, target = centre
    return ((part.keys.number - number) ** 2).sum(axis=0), ((part.target - target) ** 2).sum(axis=0)


def _added(one: tuple[Array, Array], other: tuple[Array, Array]) -> tuple[Array, Array]:
    return one[0] + other[0], one[1] + other[1]


def _as_is(part: Any, shared: None) -> Any:
    return part


def _length(part: Array, shared: None) -> int:
    return len(part)


def _plus(one: Any, other: Any) -> Any:
    return one + other


def _side_by_side(one: TrainingData, other: TrainingData) -> TrainingData:
    number = np.concatenate([one.keys.number, other.keys.number])
    target = np.concatenate([one.target, other.target])
    if number.shape[1] == 1:
        order = np.argsort(number[:, 0], kind="stable")
        number, target = number[order], target[order]
    return one._replace(keys=Keys(number, np.empty((len(number), 0), np.int64)), target=target)
