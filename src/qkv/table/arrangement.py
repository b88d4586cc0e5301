"""The order in which rows are processed: by group and, where that pays, by key."""

from __future__ import annotations

import numpy as np

from qkv.jit import kernel
from qkv.jit.signature import Double2, Int1, Int32_1
from qkv.table.groups import Membership


class Arrangement:
    """Rows in another order; some may be left out. By default the order in which they are read."""

    def __init__(self, groups: np.ndarray, bounds: np.ndarray) -> None:
        self.groups = groups  # (g,): the numbers of the groups, in the order in which they lie
        self.bounds = bounds  # (g + 1,): where each begins, and the last one ends

    def arranged(self, columns: np.ndarray) -> np.ndarray:
        """Columns (c, m) in the new order."""
        return columns

    @property
    def order(self) -> np.ndarray:
        """Which row each is, (m,), or (0,) for rows as they come."""
        return np.empty(0, np.int64)


class Sorted(Arrangement):
    """Rows taken in a given order."""

    def __init__(self, order: np.ndarray, groups: np.ndarray, bounds: np.ndarray) -> None:
        super().__init__(groups, bounds)
        self._order = order

    def arranged(self, columns: np.ndarray) -> np.ndarray:
        return np.take(columns, self._order, axis=1)

    @property
    def order(self) -> np.ndarray:
        return self._order


class Grouped(Arrangement):
    """Rows of a group side by side, in the order in which they came.

    Columns are read sequentially and entries scattered to their places: gathering instead would
    fetch each cache line again for every group that has a row in it.
    """

    def __init__(self, membership: Membership) -> None:
        codes = membership.codes
        super().__init__(*bounds_of(codes, membership.numbers))
        counts = np.bincount(codes)
        self._place = np.empty(len(codes), np.int64)
        number_places(codes, np.cumsum(counts) - counts, self._place, count=1, grain=1)

    def arranged(self, columns: np.ndarray) -> np.ndarray:
        out = np.empty(columns.shape)
        if len(columns):
            columns = np.ascontiguousarray(columns)  # logs of texts may lie the other way round
            scatter(columns, self._place, out, count=len(columns), grain=1)
        return out

    @property
    def order(self) -> np.ndarray:
        order = np.empty(len(self._place), np.int64)
        order[self._place] = np.arange(len(order))
        return order


def bounds_of(codes: np.ndarray, numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers of the groups that have rows, and where each begins once they lie together."""
    counts = np.bincount(codes)
    met = np.flatnonzero(counts)
    return numbers[met], np.concatenate([[0], np.cumsum(counts[met])])


@kernel
def number_places(start: int, stop: int, groups: Int32_1, following: Int1, place: Int1) -> None:
    """Where each row goes, if the next one of its group goes to `following`."""
    for i in range(len(groups)):
        place[i] = following[groups[i]]
        following[groups[i]] += 1


@kernel
def scatter(start: int, stop: int, columns: Double2, place: Int1, out: Double2) -> None:
    """Columns from `start` to `stop` with their entries at other places."""
    for c in range(start, stop):
        for i in range(len(place)):
            out[c, place[i]] = columns[c, i]
