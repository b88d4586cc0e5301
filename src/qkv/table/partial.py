"""What some rows say to some queries, ready to be merged with what other rows say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

#: Distinct values times queries that a distribution may hold: 1 GB of weights.
MOST_MASS = 2**27


@dataclass
class TablePartial:
    """Sums over rows, relative to exp(peak), for n queries and values of d numbers.

    :meth:`merge` is associative and commutative up to rounding, with :meth:`nothing` as its
    neutral element, so a table may be split anyhow: over batches, files or machines. Means and
    spreads are merged as such, not as sums of squares, whose difference would lose digits.
    """

    peak: np.ndarray  # (n,): the largest log weight; -inf where no row counts
    total: np.ndarray  # (n,): Σw
    squared: np.ndarray  # (n,): Σw²
    mean: np.ndarray  # (n, d): Σwv / Σw
    spread: np.ndarray  # (n, d): Σw(v − mean)²
    values: list[Any]  # distinct values, where these are no numbers
    mass: np.ndarray  # (n, len(values)): Σw of the rows with that value

    @classmethod
    def nothing(cls, n: int, d: int) -> TablePartial:
        """The sums over no rows at all."""
        zeros = np.zeros
        return cls(
            np.full(n, -np.inf), zeros(n), zeros(n), zeros((n, d)), zeros((n, d)), [], zeros((n, 0))
        )

    def merge(self, other: TablePartial) -> TablePartial:
        """The sums over the rows of both."""
        peak = np.maximum(self.peak, other.peak)
        finite = np.where(np.isneginf(peak), 0.0, peak)  # where both are empty: no -inf + inf
        own, theirs = np.exp(self.peak - finite), np.exp(other.peak - finite)
        left, right = own * self.total, theirs * other.total
        total = left + right
        share = np.divide(right, total, out=np.zeros_like(total), where=total > 0)
        moved = other.mean - self.mean
        spread = own[:, None] * self.spread + theirs[:, None] * other.spread
        values, mass = _merge_mass(self, other, own, theirs)
        return TablePartial(
            peak=peak,
            total=total,
            squared=own**2 * self.squared + theirs**2 * other.squared,
            mean=self.mean + share[:, None] * moved,
            spread=spread + moved**2 * (left * share)[:, None],
            values=values,
            mass=mass,
        )

    @property
    def effective_rows(self) -> np.ndarray:
        """(Σw)² / Σw²: how many equally weighed rows would say as much."""
        rows = np.zeros_like(self.total)
        np.divide(self.total**2, self.squared, out=rows, where=self.squared > 0)
        return rows


def _merge_mass(
    left: TablePartial, right: TablePartial, own: np.ndarray, theirs: np.ndarray
) -> tuple[list[Any], np.ndarray]:
    if not right.values:
        return left.values, own[:, None] * left.mass
    places = {value: place for place, value in enumerate(left.values)}
    columns = [places.setdefault(value, len(places)) for value in right.values]
    if len(places) * len(own) > MOST_MASS:
        raise ValueError(
            f"the value column has more than {MOST_MASS // len(own):,} distinct values, too many "
            f"for a distribution for each of {len(own):,} queries"
        )
    mass = np.zeros((len(own), len(places)))
    mass[:, : len(left.values)] = own[:, None] * left.mass
    mass[:, columns] += theirs[:, None] * right.mass
    return list(places), mass
