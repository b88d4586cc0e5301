"""Partial sums of some rows for some queries, which merge with those of other rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

#: Distinct values times queries that a distribution may hold: 1 GB of weights.
MOST_MASS = 2**27

#: What there is one of for each query.
_SUMS = ("peak", "total", "squared", "mean", "spread", "rest")


@dataclass
class TablePartial:
    """Sums over rows, relative to exp(peak), for n queries and values of d numbers.

    :meth:`merge` is associative and commutative up to rounding, with :meth:`nothing` as its
    neutral element, so a table may be split in any way: over batches, files or machines. Means and
    spreads are merged as such, not as sums of squares, whose difference would lose digits. The
    rounding error of a mean is kept too: means far from 0 may lie closer together than that.
    """

    peak: np.ndarray  # (n,): the largest log weight; -inf where no row counts
    total: np.ndarray  # (n,): Σw
    squared: np.ndarray  # (n,): Σw²
    mean: np.ndarray  # (n, d): Σwv / Σw
    spread: np.ndarray  # (n, d): Σw(v − mean)²
    values: list[Any]  # distinct values, where these are no numbers
    mass: np.ndarray  # (n, len(values)): Σw of the rows with that value
    rest: np.ndarray | float = 0.0  # (n, d): what rounding left out of the mean

    def __post_init__(self) -> None:
        if not isinstance(self.rest, np.ndarray):
            self.rest = np.full(self.mean.shape, self.rest)

    @classmethod
    def nothing(cls, n: int, d: int) -> TablePartial:
        """The sums over no rows at all."""
        never, zeros = np.full(n, -np.inf), np.zeros
        mean, spread, rest = zeros((3, n, d))
        return cls(never, zeros(n), zeros(n), mean, spread, [], zeros((n, 0)), rest)

    def merge(self, other: TablePartial) -> TablePartial:
        """The sums over the rows of both."""
        peak = np.maximum(self.peak, other.peak)
        finite = np.where(np.isneginf(peak), 0.0, peak)  # where both are empty: no -inf + inf
        our_scale, their_scale = np.exp(self.peak - finite), np.exp(other.peak - finite)
        left, right = our_scale * self.total, their_scale * other.total
        mean, rest, between = _merge_means(self, other, left, right)
        values, mass = _merge_mass(self, other, our_scale, their_scale)
        return TablePartial(
            peak=peak,
            total=left + right,
            squared=our_scale**2 * self.squared + their_scale**2 * other.squared,
            mean=mean,
            spread=our_scale[:, None] * self.spread + their_scale[:, None] * other.spread + between,
            values=values,
            mass=mass,
            rest=rest,
        )

    def take(self, places: np.ndarray) -> TablePartial:
        """The sums of some of the queries."""
        return TablePartial(
            values=self.values, **{name: getattr(self, name)[places] for name in (*_SUMS, "mass")}
        )

    def joined(self, other: TablePartial) -> TablePartial:
        """The sums of the queries of both; `other` has the same values, or none."""
        mass = other.mass if other.values else np.zeros((len(other.peak), len(self.values)))
        return TablePartial(
            values=self.values,
            mass=np.concatenate([self.mass, mass]),
            **{n: np.concatenate([getattr(self, n), getattr(other, n)]) for n in _SUMS},
        )

    def merge_at(self, places: np.ndarray, other: TablePartial) -> None:
        """Merge the sums of `other` into those of some of the queries, each once."""
        merged = self.take(places).merge(other)
        for name in _SUMS:
            getattr(self, name)[places] = getattr(merged, name)
        new = len(merged.values) - len(self.values)
        self.values = merged.values
        self.mass = np.pad(self.mass, [(0, 0), (0, new)]) if new else self.mass
        self.mass[places] = merged.mass

    @property
    def effective_rows(self) -> np.ndarray:
        """(Σw)² / Σw²: the effective number of rows."""
        rows = np.zeros_like(self.total)
        np.divide(self.total**2, self.squared, out=rows, where=self.squared > 0)
        return rows


def _merge_means(
    left: TablePartial, right: TablePartial, our_mass: np.ndarray, their_mass: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The mean of both, its rest, and what their distance adds to the spread.

    The mean is taken from the heavier one, so that a distant mean of negligible weight causes no
    rounding.
    """
    total = np.where(our_mass + their_mass > 0.0, our_mass + their_mass, 1.0)
    our_mass, their_mass, total = our_mass[:, None], their_mass[:, None], total[:, None]
    with np.errstate(invalid="ignore"):  # of infinite means
        moved = (right.mean - left.mean) + (right.rest - left.rest)
        mean, rest = _exact_sum(
            np.where(our_mass < their_mass, right.mean, left.mean),
            np.where(
                our_mass < their_mass,
                right.rest - our_mass / total * moved,
                left.rest + their_mass / total * moved,
            ),
        )
        between = moved**2 * (our_mass * (their_mass / total))
        finite = np.isfinite(left.mean) & np.isfinite(right.mean)
        mean = np.where(finite, mean, left.mean + right.mean)
    return mean, np.where(finite, rest, 0.0), between


def _exact_sum(a: np.ndarray, b: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """a + b, and what rounding left out of it (Knuth)."""
    total = a + b
    from_b = total - a
    return total, (a - (total - from_b)) + (b - from_b)


def _merge_mass(
    left: TablePartial, right: TablePartial, our_mass: np.ndarray, their_mass: np.ndarray
) -> tuple[list[Any], np.ndarray]:
    if not right.values:
        return left.values, our_mass[:, None] * left.mass
    if right.values is left.values:
        return left.values, our_mass[:, None] * left.mass + their_mass[:, None] * right.mass
    places = {value: place for place, value in enumerate(left.values)}
    columns = [places.setdefault(value, len(places)) for value in right.values]
    if len(places) * len(our_mass) > MOST_MASS:
        raise ValueError(
            f"the value column has more than {MOST_MASS // len(our_mass):,} distinct values, too "
            f"many for a distribution for each of {len(our_mass):,} queries"
        )
    mass = np.zeros((len(our_mass), len(places)))
    mass[:, : len(left.values)] = our_mass[:, None] * left.mass
    mass[:, columns] += their_mass[:, None] * right.mass
    return list(places), mass
