"""The matches of right rows for a block of left rows, which merge with those of other rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from qkv.table.join import kernels
from qkv.table.join.kernels import MASS, MEAN, SQUARED, TOTAL


@dataclass
class Matches:
    """The heaviest rows of each left row, and sums over all that match."""

    logs: np.ndarray  # (n, top): of the heaviest, the heaviest first
    far: np.ndarray  # (n, top): how far they are, in bandwidths
    rows: np.ndarray  # (n, top): their numbers in the right table; -1 where there are fewer
    least: np.ndarray  # (n,): how far the nearest is, where only that counts
    peak: np.ndarray  # (n,): the largest log; -inf where nothing matches
    sums: np.ndarray  # (n, 2): Σw and Σw², relative to exp(peak)
    means: np.ndarray  # (n, v, 3): Σw of rows that have a value, and its mean
    values: pa.Table | None = None  # (n · top): what the heaviest rows bring

    @classmethod
    def none(cls, n: int, top: int, values: int) -> Matches:
        """Before any row was met."""
        return cls(
            logs=np.full((n, top), -np.inf),
            far=np.zeros((n, top)),
            rows=np.full((n, top), -1),
            least=np.full(n, np.inf),
            peak=np.full(n, -np.inf),
            sums=np.zeros((n, 2)),
            means=np.zeros((n, values, 3)),
        )

    @classmethod
    def unwritten(cls, n: int, top: int, values: int) -> Matches:
        """Room for what compiled code finds."""
        return cls(
            logs=np.empty((n, top)),
            far=np.empty((n, top)),
            rows=np.empty((n, top), np.int64),
            least=np.empty(n),
            peak=np.empty(n),
            sums=np.empty((n, 2)),
            means=np.empty((n, values, 3)),
        )

    def as_sums(self) -> kernels.MatchSums:
        """The same for compiled code to write to."""
        return kernels.MatchSums(
            self.logs, self.far, self.rows, self.least, self.peak, self.sums, self.means
        )

    def put(self, places: np.ndarray, other: Matches) -> None:
        """Write what was found for some of the left rows."""
        for name in ("logs", "far", "rows", "least", "peak", "sums", "means"):
            getattr(self, name)[places] = getattr(other, name)

    def merge(self, other: Matches) -> Matches:
        """The matches of the rows of both; those of `other` come later in the table."""
        nearer = np.minimum(self.least, other.least)
        ours, theirs = self._within(nearer), other._within(nearer)
        logs, far, rows = (
            np.concatenate([getattr(ours, name), getattr(theirs, name)], axis=1)
            for name in ("logs", "far", "rows")
        )
        n, top = self.rows.shape
        order = np.lexsort((np.where(rows < 0, np.inf, rows), far, -logs), axis=1)[:, :top]
        peak = np.maximum(ours.peak, theirs.peak)
        finite = np.where(np.isneginf(peak), 0.0, peak)
        shrink = [np.exp(each.peak - finite) for each in (ours, theirs)]
        return Matches(
            logs=np.take_along_axis(logs, order, axis=1),
            far=np.take_along_axis(far, order, axis=1),
            rows=np.take_along_axis(rows, order, axis=1),
            least=nearer,
            peak=peak,
            sums=ours.sums * np.stack([shrink[0], shrink[0] ** 2], axis=1)
            + theirs.sums * np.stack([shrink[1], shrink[1] ** 2], axis=1),
            means=_merged_means(ours.means, theirs.means, *shrink),
            values=_merged_rows(self.values, other.values, order, n, top),
        )

    def _within(self, least: np.ndarray) -> Matches:
        """Without what lies farther than the nearest, where only that counts."""
        beyond = self.least > least
        if not beyond.any():
            return self
        empty = Matches.none(len(beyond), self.rows.shape[1], self.means.shape[1])
        columns: dict[str, Any] = {}
        for name in ("logs", "far", "rows", "peak", "sums", "means"):
            column, other = getattr(self, name), getattr(empty, name)
            columns[name] = np.where(beyond.reshape(-1, *[1] * (column.ndim - 1)), other, column)
        return Matches(**columns, least=least, values=self.values)

    @property
    def matched(self) -> np.ndarray:
        return np.asarray(self.rows[:, 0] >= 0)

    @property
    def similarity(self) -> np.ndarray:
        """The weight of the heaviest row, before weights are made to sum to 1."""
        heaviest: np.ndarray = np.exp(self.logs[:, 0])
        return heaviest

    @property
    def weight(self) -> np.ndarray:
        """Its share of the weight of all rows that match."""
        peak = np.where(self.matched, self.peak, 0.0)
        total = np.where(self.matched, self.sums[:, TOTAL], 1.0)
        return np.asarray(np.minimum(np.exp(self.logs[:, 0] - peak) / total, 1.0))

    @property
    def effective_rows(self) -> np.ndarray:
        """(Σw)² / Σw²: the effective number of rows."""
        rows = np.zeros(len(self.peak))
        total, squared = self.sums[:, TOTAL], self.sums[:, SQUARED]
        np.divide(total**2, squared, out=rows, where=squared > 0)
        return rows


def _merged_means(
    left: np.ndarray, right: np.ndarray, shrink_left: np.ndarray, shrink_right: np.ndarray
) -> np.ndarray:
    left_mass, right_mass = (
        left[..., MASS] * shrink_left[:, None],
        right[..., MASS] * shrink_right[:, None],
    )
    merged = np.zeros_like(left)
    merged[..., MASS] = left_mass + right_mass
    share = np.divide(
        right_mass,
        left_mass + right_mass,
        out=np.zeros_like(left_mass),
        where=left_mass + right_mass > 0,
    )
    merged[..., MEAN] = left[..., MEAN]
    moved = share > 0
    # From the heavier of both: a mean far away that weighs next to nothing leaves no rounding.
    forth = left[..., MEAN] + (right[..., MEAN] - left[..., MEAN]) * share
    back = right[..., MEAN] + (left[..., MEAN] - right[..., MEAN]) * (1.0 - share)
    merged[..., MEAN] = np.where(
        moved, np.where(share == 1.0, right[..., MEAN], np.where(share < 0.5, forth, back)),
        left[..., MEAN],
    )  # fmt: skip
    return merged


def _merged_rows(
    left: pa.Table | None, right: pa.Table | None, order: np.ndarray, n: int, top: int
) -> pa.Table | None:
    """The values of the heaviest rows of both."""
    if left is None or right is None:
        return right if left is None else left
    place = np.arange(n)[:, None] * top + order % top
    places = np.where(order < top, place, n * top + place).ravel()
    return pa.concat_tables([left, right]).take(pa.array(places))
