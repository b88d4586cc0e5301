"""Training data that stay on the workers of a Dask cluster: each part answers, and answers merge.

What is not distributed is rejected by name: widths by neighbours, lines (degree 1), categories,
missing numbers, weights of rows, and the nearest example where none is within reach.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from qkv.cluster import jobs
from qkv.optional_dependencies import require
from qkv.regression import local
from qkv.regression.adaptive_bandwidth import Nearest
from qkv.regression.training_data import Array, Keys, TrainingData, Width, pivot_of
from qkv.similarity import Kernel


class PartialMean(NamedTuple):
    """The answer from some of the examples, to be merged with that from others."""

    answer: Array  # (n, k)
    log_total: Array  # (n,)

    def merge(self, other: PartialMean) -> PartialMean:
        peak = np.maximum(self.log_total, other.log_total)
        safe = np.where(peak == -np.inf, 0.0, peak)
        ours, theirs = np.exp(self.log_total - safe), np.exp(other.log_total - safe)
        total = ours + theirs
        share = np.divide(theirs, total, where=total > 0, out=np.zeros_like(total))[:, None]
        answer = self.answer + share * (other.answer - self.answer)
        answer = np.where(share == 0, self.answer, np.where(share == 1, other.answer, answer))
        with np.errstate(divide="ignore"):
            return PartialMean(answer, np.log(total) + safe)


class Column(NamedTuple):
    """Sums and ends of columns, each (columns,)."""

    sum: Array
    low: Array
    high: Array

    def merge(self, other: Column) -> Column:
        low, high = np.minimum(self.low, other.low), np.maximum(self.high, other.high)
        return Column(self.sum + other.sum, low, high)


class Summary(NamedTuple):
    """The number of rows, and the sums and ranges of their columns."""

    rows: int
    number: Column
    target: Column

    def merge(self, other: Summary) -> Summary:
        number, target = self.number.merge(other.number), self.target.merge(other.target)
        return Summary(self.rows + other.rows, number, target)


class Question(NamedTuple):
    """What is computed on each part."""

    kernel: Kernel
    width: Width
    query: Array


class DistributedData:
    """Keys and targets on the workers, in parts."""

    def __init__(self, client: Any, x: Any, y: Any, classes: Any = None) -> None:
        """`x` (m, d) and `y` (m,) or (m, k) are Dask arrays of one chunk of columns each."""
        dask = require("dask", "cluster")
        x = x.rechunk({1: -1})
        y = (y if y.ndim == 2 else y[:, None]).rechunk((x.chunks[0], -1))
        made = dask.delayed(_examples, pure=False)
        blocks = zip(x.to_delayed().ravel(), y.to_delayed().ravel(), x.chunks[0], strict=True)
        some = [made(keys, targets, classes) for keys, targets, rows in blocks if rows]
        if not some:
            raise ValueError("X must have at least one row; got none")
        self.client = client
        # Held for as long as the model lives: the keys are computed once, and stay.
        self.parts = client.compute(some)
        self.summary = jobs.fold(client, _summary, self.parts, None, Summary.merge)
        self.mean = self.summary.target.sum / self.summary.rows
        self.pivot = pivot_of(self.summary.target.low, self.summary.target.high)
        if self.pivot.any():
            pivoted = dask.delayed(_pivoted, pure=False)
            self.parts = client.compute([pivoted(part, self.pivot) for part in self.parts])

    def answer(self, query: Array, kernel: Kernel, width: Width) -> PartialMean:
        """The answer from all examples."""
        shared = Question(kernel, width, query)
        return jobs.fold(self.client, _ask, self.parts, shared, PartialMean.merge)

    def lazy_answer(self, query: Any, kernel: Kernel, width: Width, finish: Any) -> Any:
        """The same, lazily, for a Dask array of queries."""
        dask, arrays = require("dask", "cluster"), require("dask.array", "cluster")
        query = query.rechunk({1: -1})
        ask, merge = dask.delayed(_ask_block), dask.delayed(merge_all)
        finish_delayed = dask.delayed(finish)
        example = finish(PartialMean(np.zeros((1, len(self.mean))), np.zeros(1)))
        blocks = [
            arrays.from_delayed(
                finish_delayed(merge([ask(part, block, kernel, width) for part in self.parts])),
                (length, *example.shape[1:]),
                example.dtype,
            )
            for block, length in zip(query.to_delayed().ravel(), query.chunks[0], strict=True)
        ]
        return arrays.concatenate(blocks)


def filled(policy: str, prior: Array, pivot: Array, merged: PartialMean) -> Array:
    """The answers, by `policy` where no example is within reach."""
    empty = merged.log_total == -np.inf
    if empty.any() and policy == "raise":
        raise ValueError(
            f"{int(empty.sum())} of {len(empty)} queries have no example within reach; a wider "
            "bandwidth would answer them"
        )
    return np.where(empty[:, None], prior if policy == "prior" else np.nan, merged.answer + pivot)


def check_distributed(estimator: Any, sample_weight: Any) -> None:
    """Raise ValueError where the estimator has parameters that are not distributed."""
    unsupported = {
        f"bandwidth={estimator.bandwidth!r} (of the criteria: loo, aicc and gcv are)":
            isinstance(estimator.bandwidth, Nearest) or str(estimator.bandwidth) == "knn",
        f"degree={estimator.degree!r}": estimator.degree != 0,
        "empty='nearest'": estimator.empty == "nearest",
        "categorical": estimator.categorical not in (None, "auto"),
        "ordered": estimator.ordered is not None,
        "sample_weight": sample_weight is not None,
    }  # fmt: skip
    given = [argument for argument, is_given in unsupported.items() if is_given]
    if given:
        raise ValueError(f"on Dask arrays these are not distributed: {', '.join(given)}")


def is_lazy(x: Any) -> bool:
    """Whether this is a Dask array or frame."""
    return type(x).__module__.partition(".")[0] == "dask"


def as_lazy_array(x: Any, name: str) -> Any:
    """A Dask array of float64 with known chunks."""
    if not is_lazy(x):
        raise TypeError(f"{name} must be a Dask array or frame as X is; got {type(x).__name__}")
    array = x.to_dask_array(lengths=True) if hasattr(x, "to_dask_array") else x
    return array.compute_chunk_sizes() if np.isnan(sum(array.shape)) else array


def default_client() -> Any:
    """The client that is current in this process."""
    distributed = require("distributed", "cluster")
    try:
        return distributed.get_client()
    except ValueError:
        raise ValueError(
            "fit on Dask arrays needs a dask.distributed.Client in this process, whose workers "
            "keep the keys"
        ) from None


def _examples(x: Any, y: Any, classes: Any) -> TrainingData:
    # Dask would take keys, which define `__len__`, for a tuple of that length.
    require("dask.sizeof", "cluster").sizeof.register(Keys, _size)
    number = np.ascontiguousarray(x, dtype=np.float64)
    if classes is None:
        target = np.ascontiguousarray(y, dtype=np.float64)
    else:
        target = np.eye(len(classes))[np.searchsorted(classes, np.asarray(y)[:, 0])]
    if not (np.isfinite(number).all() and np.isfinite(target).all()):
        raise ValueError("X and y must hold finite numbers: missing ones are not distributed")
    if number.shape[1] == 1:  # sorted once, so that no query has to sort again
        order = np.argsort(number[:, 0], kind="stable")
        number, target = number[order], target[order]
    return TrainingData(Keys(number, np.empty((len(number), 0), np.int64)), target, None, (),
                    np.zeros(target.shape[1]))  # fmt: skip


def _size(keys: Keys) -> int:
    return keys.number.nbytes + keys.code.nbytes


def _summary(part: TrainingData, shared: None) -> Summary:
    columns = [
        Column(each.sum(axis=0), each.min(axis=0), each.max(axis=0))
        for each in (part.keys.number, part.target)
    ]
    return Summary(len(part.target), *columns)


def _pivoted(part: TrainingData, pivot: Array) -> TrainingData:
    return part._replace(target=part.target - pivot)


def _ask(part: TrainingData, question: Question) -> PartialMean:
    return _ask_block(part, question.query, question.kernel, question.width)


def _ask_block(part: TrainingData, query: Any, kernel: Kernel, width: Width) -> PartialMean:
    number = np.ascontiguousarray(query, dtype=np.float64)
    keys = Keys(number, np.empty((len(number), 0), np.int64))
    return PartialMean(*local.fit(part, kernel, width, keys, degree=0))


def merge_all(partials: list[PartialMean]) -> PartialMean:
    """The answer from all parts."""
    merged = partials[0]
    for partial in partials[1:]:
        merged = merged.merge(partial)
    return merged
