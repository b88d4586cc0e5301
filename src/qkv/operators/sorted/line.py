"""Keys on a line, sorted once, and what they say to any number of queries at any bandwidth."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qkv.operators.sharing import share_out
from qkv.operators.sorted.ascending import BUCKET, Ascending, Places, ascending

Array = npt.NDArray[np.float64]

KERNELS = ("gaussian", "laplacian", "boxcar", "triangular", "epanechnikov", "biweight", "tricube")

Pool = Callable[[int, int], None]  # answers the queries from one place to another

_RUN = 2**16  # queries whose keys are summed up before the next
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
        self.order: Ascending | None = None
        if (key[1:] < key[:-1]).any():  # who sorted before need not wait again
            self.order = ascending(key)
            self.key, self.value = self.order.number, self.order.take(self.value)
            self.weight = self.order.take(self.weight[:, None])[:, 0]
        self.margin = math.log(self.weight.sum() / self.weight.min()) + 53 * math.log(2)

    def pool(self, query: Array, kernel: str, bandwidth: float) -> Said:
        """What the keys say to each query (n,)."""
        asked = ascending(query)
        return _give_back(asked, self._pool(asked.number, kernel, bandwidth, others=False))

    def pool_others(self, kernel: str, bandwidth: float) -> Said:
        """What the other keys say to each key: attention that may not look at itself.

        A weight counts copies of a key; of several, one is left out.
        """
        said = self._pool(self.key, kernel, bandwidth, others=True)
        return said if self.order is None else _give_back(self.order, said)

    def _pool(self, query: Array, kernel: str, bandwidth: float, others: bool) -> Said:
        """What is said to queries in ascending order."""
        said = Said(np.empty((query.size, self.value.shape[1])), np.empty(query.size))
        for begin, end, pool in self._runs(query, kernel, bandwidth, others, said):

            def run(start: int, stop: int, begin: int = begin, pool: Pool = pool) -> None:
                pool(begin + start, begin + stop)
                answer = said.answer[begin + start : begin + stop]
                answer += self.mean
                # A mean of values lies among them, and rounding must not say otherwise.
                np.clip(answer, self.low, self.high, out=answer)
                answer[said.log_total[begin + start : begin + stop] == -np.inf] = 0.0

            share_out(end - begin, _CHUNK, _LEAST, run)
        return said

    def _runs(
        self, query: Array, kernel: str, h: float, others: bool, said: Said
    ) -> Iterator[tuple[int, int, Pool]]:
        """Runs of sorted queries, from one place to another, and what answers them. Loads Numba."""
        keys, weights, values = self.key, self.weight, self.value
        if kernel == "laplacian":
            from qkv.operators.sorted import laplacian

            scans = laplacian.prepare(keys, weights, values, h)
            yield (
                0,
                query.size,
                lambda start, stop: laplacian.pool(
                    query, start, stop, keys, weights, values, h, others, scans, *said
                ),
            )
        elif kernel == "gaussian":
            from qkv.operators.sorted import gaussian

            cells = gaussian.prepare(keys, values, h)
            self._fill(partial(gaussian.fill, keys, weights, values, h, cells), len(cells[0]) - 1)
            yield (
                0,
                query.size,
                lambda start, stop: gaussian.pool(
                    query, start, stop, keys, weights, values, h, self.margin, others, cells, *said
                ),
            )
        else:
            yield from self._compact_runs(query, kernel, h, others, said)

    def _compact_runs(
        self, query: Array, kernel: str, h: float, others: bool, said: Said
    ) -> Iterator[tuple[int, int, Pool]]:
        """Runs that see few keys, so that the sums of these stay in the cache."""
        from qkv.operators.sorted import compact

        matrix, guard = compact.expansion(kernel)
        even = not np.any(matrix[0, 1::2])
        runs, seen = self._seen(query, h)
        moments = compact.room(np.ptp(seen, axis=1).max(initial=0), self.value.shape[1], matrix)
        for (begin, end), (first, last) in zip(runs.tolist(), seen.tolist(), strict=True):
            here = slice(first, last)
            keys, weights, values = self.key[here], self.weight[here], self.value[here]
            cells = compact.prepare(keys, h, moments)
            self._fill(partial(compact.fill, keys, weights, values, h, cells), len(cells[0]) - 1)
            # With `others`, queries are the keys, and must have the same places.
            rest = slice(first if others else begin, None)
            pool = partial(
                _shifted, rest.start, compact.pool, query[rest],
                (keys, weights, values, h, guard, others, matrix, even, cells,
                 said.answer[rest], said.log_total[rest]),
            )  # fmt: skip
            yield begin, end, pool

    def _seen(self, query: Array, h: float) -> tuple[Places, Places]:
        """Runs of queries, from and to, and the keys that each may see, from and to."""
        begin = np.arange(0, query.size, _RUN)
        end = np.minimum(begin + _RUN, query.size)
        reach = 1.001 * h + 1e-15 * np.abs(query[[0, -1]]).max()
        first = np.searchsorted(self.key, query[begin] - reach)
        last = np.searchsorted(self.key, query[end - 1] + reach, side="right")
        if (last - first).sum() > 2 * self.key.size:  # windows so wide that runs see the same keys
            return np.array([[0, query.size]]), np.array([[0, self.key.size]])
        return np.stack([begin, end], axis=1), np.stack([first, last], axis=1)

    def _fill(self, fill: Callable[[int, int], None], cells: int) -> None:
        """Sum up each cell; few keys are summed sooner than a thread is called."""
        share_out(cells, _CHUNK, 1 if self.key.size > _CHUNK else cells, fill)


def _shifted(
    by: int, pool: Callable[..., None], query: Array, rest: tuple[Any, ...], start: int, stop: int
) -> None:
    pool(query, start - by, stop - by, *rest)


def _give_back(asked: Ascending, said: Said) -> Said:
    """What was said in ascending order, to each where it stood."""
    return Said(asked.give_back(said.answer), asked.give_back(said.log_total[:, None])[:, 0])


def compile_all() -> None:
    """Compile the kernels, or load them from disk, so that no first call has to wait."""
    some = np.arange(3.0)
    line = Line(some, some[:, None])
    for kernel in ("gaussian", "laplacian", "boxcar"):  # one of each file
        line.pool(some, kernel, 1.0)
    line.pool(np.arange(BUCKET + 1.0), "boxcar", 1.0)
