"""Keys on a line, sorted once, and what they say to any number of queries at any bandwidth."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from qkv.operators.fused import threads

Array = npt.NDArray[np.float64]

KERNELS = ("gaussian", "laplacian", "boxcar", "triangular", "epanechnikov", "biweight", "tricube")

_CHUNK = 4096  # most queries that a thread takes at a time
_LEAST = 256  # and the least that are worth a thread


class Said(NamedTuple):
    """What keys say to each query: the weighted mean of their values, and its total weight."""

    answer: Array  # (n, columns); 0 where there is nothing to attend to
    log_total: Array  # (n,); -inf there


class Line:
    """Keys (m,), their values (m, columns) and weights (m,) > 0, all finite, in float64."""

    def __init__(self, key: Array, value: Array, weight: Array | None = None) -> None:
        # Sums of what differs from the mean keep the digits that sums with an offset would lose.
        self.mean = value.mean(axis=0)
        self.low, self.high = value.min(axis=0), value.max(axis=0)
        self.key, self.value = key, value - self.mean
        self.weight = np.ones(key.size) if weight is None else weight
        if (key[1:] >= key[:-1]).all():  # who sorted before need not wait again
            self.order = np.arange(key.size)
        else:
            self.order = np.argsort(key)
            self.key, self.value = key[self.order], self.value[self.order]
            self.weight = self.weight[self.order]
        self.margin = math.log(self.weight.sum() / self.weight.min()) + 53 * math.log(2)

    def pool(self, query: Array, kernel: str, bandwidth: float) -> Said:
        """What the keys say to each query (n,)."""
        order = np.argsort(query)
        return self._pool(query[order], order, kernel, bandwidth, others=False)

    def pool_others(self, kernel: str, bandwidth: float) -> Said:
        """What the other keys say to each key: attention that may not look at itself.

        A weight counts copies of a key; of several, one is left out.
        """
        return self._pool(self.key, self.order, kernel, bandwidth, others=True)

    def _pool(self, query: Array, order: Any, kernel: str, bandwidth: float, others: bool) -> Said:
        answer, log_total = np.empty((query.size, self.value.shape[1])), np.empty(query.size)
        run = self._kernel(query, order, kernel, bandwidth, others, answer, log_total)
        _share_out(query.size, _LEAST, run)
        answer += self.mean
        # A mean of values lies among them, and rounding must not say otherwise.
        np.clip(answer, self.low, self.high, out=answer)
        answer[log_total == -np.inf] = 0.0
        return Said(answer, log_total)

    def _kernel(
        self,
        query: Array,
        order: Any,
        kernel: str,
        h: float,
        others: bool,
        answer: Array,
        log_total: Array,
    ) -> Callable[[int, int], None]:
        """A function that answers the sorted queries from one place to another, each where `order`
        says that it stood. Loads Numba.
        """
        keys, weights, values = self.key, self.weight, self.value
        if kernel == "laplacian":
            from qkv.operators.sorted import laplacian

            scans = laplacian.prepare(keys, weights, values, h)
            return lambda start, stop: laplacian.pool(
                query,
                order,
                start,
                stop,
                keys,
                weights,
                values,
                h,
                others,
                scans,
                answer,
                log_total,
            )
        if kernel == "gaussian":
            from qkv.operators.sorted import gaussian

            cells = gaussian.prepare(keys, values, h)
            self._fill(partial(gaussian.fill, keys, weights, values, h, cells), len(cells[0]) - 1)
            return lambda start, stop: gaussian.pool(
                query, order, start, stop, keys, weights, values, h, self.margin, others, cells,
                answer, log_total,
            )  # fmt: skip
        from qkv.operators.sorted import compact

        matrix, guard = compact.expansion(kernel)
        even = not np.any(matrix[0, 1::2])
        cells = compact.prepare(keys, values, h, matrix.shape[0])
        self._fill(partial(compact.fill, keys, weights, values, h, cells), len(cells[0]) - 1)
        return lambda start, stop: compact.pool(
            query, order, start, stop, keys, weights, values, h, guard, others, matrix, even, cells,
            answer, log_total,
        )  # fmt: skip

    def _fill(self, fill: Callable[[int, int], None], cells: int) -> None:
        """Sum up each cell; few keys are summed sooner than a thread is called."""
        _share_out(cells, 1 if self.key.size > _CHUNK else cells, fill)


def compile_all() -> None:
    """Compile the kernels, or load them from disk, so that no first call has to wait."""
    some = np.arange(3.0)
    line = Line(some, some[:, None])
    for kernel in ("gaussian", "laplacian", "boxcar"):  # one of each file
        line.pool(some, kernel, 1.0)


def _share_out(count: int, least: int, run: Callable[[int, int], None]) -> None:
    """Have `run(start, stop)` called for all of `count` places, by several threads."""
    available = torch.get_num_threads()
    size = min(_CHUNK, max(least, -(-count // available)))
    chunks = itertools.count(0, size)

    def task() -> None:
        # Drawing a number is one step under the interpreter's lock, so threads share it.
        while (start := next(chunks)) < count:
            run(start, min(start + size, count))

    threads.run(task, min(available, -(-count // size)))
