"""Which rows of the right table each row of the left may still match."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

#: Pairs that are listed at once.
MOST_PAIRS = 2**20


class Candidates(NamedTuple):
    """Runs of right rows for some left rows.

    Runs may overlap: rows in a sorted order need no list of pairs.
    """

    left: np.ndarray  # (n,): which rows of the left table
    spans: np.ndarray  # (n, 2): the run of each within `right`
    right: np.ndarray  # (p,): which rows of the right table
    logs: np.ndarray = np.empty(0)  # (p,): log weights, if runs are pairs of their own; or (0,)

    @property
    def counts(self) -> np.ndarray:
        return np.diff(self.spans, axis=1)[:, 0]

    def some(self, places: np.ndarray | slice) -> Candidates:
        """Those of some of the left rows."""
        return self._replace(left=self.left[places], spans=self.spans[places])

    def pairs(self) -> tuple[np.ndarray, np.ndarray]:
        """All pairs as a list: which of the left rows, and where in `right`."""
        counts = self.counts
        whose = np.repeat(np.arange(len(counts)), counts)
        starts = np.cumsum(counts) - counts
        return whose, np.arange(len(whose)) + (self.spans[:, 0] - starts)[whose]


def spans_of(counts: np.ndarray) -> np.ndarray:
    """Runs of these lengths, one after the other, (n, 2)."""
    ends = np.cumsum(counts)
    return np.ascontiguousarray(np.stack([ends - counts, ends], axis=1))


def groups(counts: np.ndarray, most: int = MOST_PAIRS) -> list[slice]:
    """Neighbours that have at most so many pairs together; a single one may have more."""
    batch, start, total = [], 0, 0
    for place, count in enumerate(counts.tolist()):
        if total and total + count > most:
            batch.append(slice(start, place))
            start, total = place, 0
        total += count
    return [*batch, slice(start, len(counts))] if len(counts) else []
