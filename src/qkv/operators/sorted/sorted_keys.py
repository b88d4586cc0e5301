"""Keys on a line, sorted once, and what they say to any number of queries at any bandwidth."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qkv.jit import Kernel
from qkv.operators.sorted import gaussian, laplacian, polynomial
from qkv.operators.sorted.bucket_sort import Ascending, Places, ascending
from qkv.operators.sorted.operands import Answers, KeyArrays

Array = npt.NDArray[np.float64]

KERNELS = ("gaussian", "laplacian", "boxcar", "triangular", "epanechnikov", "biweight", "tricube")

_RUN = 2**16  # queries whose keys are summed up before the next
_CHUNK = 4096  # most queries that a thread takes at a time
_LEAST = 256  # and the least that are worth a thread
_SHARES = 64  # in between, as many parts as let all threads end at about the same time


def failure(kernel: str) -> str | None:
    """Why there is no compiled code for this kernel, if it was tried in vain."""
    home: Any = {"gaussian": gaussian, "laplacian": laplacian}.get(kernel, polynomial)
    functions = (each for each in vars(home).values() if isinstance(each, Kernel))
    reasons = (function.failure("float64") for function in functions)
    return next((reason for reason in reasons if reason is not None), None)


class WeightedMean(NamedTuple):
    """What keys say to each query: the weighted mean of their values, and its total weight."""

    answer: Array  # (n, columns); 0 where there is nothing to attend to
    log_total: Array  # (n,); -inf there


class SortedKeys:
    """Keys (m,), their values (m, columns) and weights (m,) > 0, all finite, in float64."""

    def __init__(self, key: Array, value: Array, weight: Array | None = None) -> None:
        mean, low, high = value.mean(axis=0), value.min(axis=0), value.max(axis=0)
        key = np.ascontiguousarray(key)
        # Sums of what differs from the mean keep the digits that sums with an offset would lose.
        value = np.ascontiguousarray(value - mean)
        weight = np.ones(key.size) if weight is None else np.ascontiguousarray(weight)
        self.order: Ascending | None = None
        if (key[1:] < key[:-1]).any():  # who sorted before need not wait again
            self.order = ascending(key)
            key, value = self.order.number, self.order.take(value)
            weight = self.order.take(weight[:, None])[:, 0]
        self.keys = KeyArrays(key, weight, value, mean, low, high)
        self.margin = math.log(weight.sum() / weight.min()) + 53 * math.log(2)

    def pool(self, query: Array, kernel: str, bandwidth: float) -> WeightedMean:
        """What the keys say to each query (n,)."""
        asked = ascending(query)
        return _give_back(asked, self._pool(asked.number, -1, kernel, bandwidth))

    def pool_others(self, kernel: str, bandwidth: float) -> WeightedMean:
        """What the other keys say to each key: attention that may not look at itself.

        A weight counts copies of a key; of several, one is left out.
        """
        said = self._pool(self.keys.key, 0, kernel, bandwidth)
        return said if self.order is None else _give_back(self.order, said)

    def _pool(self, query: Array, itself: int, kernel: str, h: float) -> WeightedMean:
        """What is said to queries in ascending order; `itself` is 0 if they are keys, else -1."""
        n, columns = query.size, self.keys.value.shape[1]
        answers = Answers(np.empty((n, columns)), np.empty(n))
        if kernel == "gaussian":
            self._gaussian(query, itself, h, answers)
        elif kernel == "laplacian":
            self._laplacian(query, itself, h, answers)
        else:
            self._polynomial(query, itself, kernel, h, answers)
        return WeightedMean(*answers)

    def _laplacian(self, query: Array, itself: int, h: float, answers: Answers) -> None:
        m, columns = self.keys.value.shape
        scans = np.empty((2, m, 1 + columns))
        laplacian.scan(self.keys, h, scans, count=2, grain=_one_thread_if_few(2, m))
        laplacian.pool(
            query, itself, self.keys, h, scans, answers,
            count=query.size, grain=_grain(query.size),
            scratch=laplacian.Scratch((1 + columns,)),
        )  # fmt: skip

    def _gaussian(self, query: Array, itself: int, h: float, answers: Answers) -> None:
        m, columns = self.keys.value.shape
        first, of_key = np.empty(m + 1, np.int64), np.empty(m, np.int64)
        filled = np.empty(1, np.int64)
        gaussian.find_cells(self.keys.key, h, first, of_key, filled, count=1)
        count = int(filled[0])
        moments = np.empty((count, 1 + columns, gaussian.TERMS))
        cells = gaussian.Cells(first[: count + 1], of_key, np.empty(count), moments)
        gaussian.fill(
            self.keys, h, cells,
            count=count, grain=_one_thread_if_few(count, m),
            scratch=gaussian.FillScratch((gaussian.LANES,)),
        )  # fmt: skip
        gaussian.pool(
            query, itself, self.keys, gaussian.Window(h, self.margin), cells, answers,
            count=query.size, grain=_grain(query.size), scratch=gaussian.scratch_shapes(columns),
        )  # fmt: skip

    def _polynomial(self, query: Array, itself: int, name: str, h: float, answers: Answers) -> None:
        """Runs of queries that see few keys, so that the sums of these stay in the cache."""
        kernel, columns = polynomial.polynomial(name), self.keys.value.shape[1]
        size = len(kernel.matrix)
        runs, seen = self._seen(query, h)
        most = np.ptp(seen, axis=1).max(initial=0)
        # Made by NumPy, which asks for huge pages: small ones of so much memory take long to get.
        moments = np.empty((most, 1 + columns, size))
        first, filled = np.empty(most + 1, np.int64), np.empty(1, np.int64)
        for (begin, end), (lo, hi) in zip(runs.tolist(), seen.tolist(), strict=True):
            keys = self.keys._replace(
                key=self.keys.key[lo:hi],
                weight=self.keys.weight[lo:hi],
                value=self.keys.value[lo:hi],
            )
            polynomial.find_cells(keys.key, h, first, filled, count=1)
            count = int(filled[0])
            cells = polynomial.Cells(
                first[: count + 1], np.empty(count), np.empty(count, np.bool_), moments
            )
            polynomial.fill(
                keys, h, cells,
                count=count, grain=_one_thread_if_few(count, hi - lo),
                scratch=polynomial.FillScratch((1 + columns, size), (1 + columns,), (1 + columns,)),
            )  # fmt: skip
            polynomial.pool(
                query[begin:end], -1 if itself < 0 else begin - lo, keys, h, kernel, cells,
                Answers(answers.answer[begin:end], answers.log_total[begin:end]),
                count=end - begin, grain=_grain(end - begin),
                scratch=polynomial.PoolScratch((size,), (1 + columns,)),
            )  # fmt: skip

    def _seen(self, query: Array, h: float) -> tuple[Places, Places]:
        """Runs of queries, from and to, and the keys that each may see, from and to."""
        key = self.keys.key
        begin = np.arange(0, query.size, _RUN)
        end = np.minimum(begin + _RUN, query.size)
        reach = 1.001 * h + 1e-15 * np.abs(query[[0, -1]]).max()
        first = np.searchsorted(key, query[begin] - reach)
        last = np.searchsorted(key, query[end - 1] + reach, side="right")
        if (last - first).sum() > 2 * key.size:  # windows so wide that runs see the same keys
            return np.array([[0, query.size]]), np.array([[0, key.size]])
        return np.stack([begin, end], axis=1), np.stack([first, last], axis=1)


def _grain(count: int) -> int:
    """How many queries a thread takes at a time: the same for any number of threads.

    The Gaussian's rounding depends on which queries go through the cells together.
    """
    return max(_LEAST, min(_CHUNK, -(-count // _SHARES)))


def _one_thread_if_few(cells: int, keys: int) -> int:
    """How many cells a thread takes at a time; few keys are summed sooner than one is called."""
    return cells if keys <= _CHUNK else min(_CHUNK, -(-cells // _SHARES))


def _give_back(asked: Ascending, said: WeightedMean) -> WeightedMean:
    """What was said in ascending order, to each where it stood."""
    return WeightedMean(
        asked.give_back(said.answer), asked.give_back(said.log_total[:, None])[:, 0]
    )
