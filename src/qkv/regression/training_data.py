"""Training data: keys (numbers and categories), targets and weights; and the kernel's width."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from qkv.regression.categories import Array as Array
from qkv.regression.categories import Category
from qkv.regression.categories import Codes as Codes

Places: TypeAlias = npt.NDArray[np.intp]


class Keys(NamedTuple):
    """Rows in the form in which they are compared."""

    number: Array  # (n, d): columns that have a distance; NaN where missing
    code: Codes  # (n, c): categories by number; see `categories` for those that have none

    def take(self, rows: Any) -> Keys:
        return Keys(self.number[rows], self.code[rows])

    def __len__(self) -> int:
        return len(self.number)

    @property
    def some_missing(self) -> bool:
        """Whether numbers are missing."""
        return bool(np.isnan(self.number).any())


class TrainingData(NamedTuple):
    """The training rows, those of weight 0 left out."""

    keys: Keys
    target: Array  # (m, k), less the pivot
    weight: Array | None  # (m,) > 0; None where all are 1
    categories: tuple[Category, ...]  # one for each column of codes
    pivot: Array  # (k,)

    @classmethod
    def of_observed(
        cls, keys: Keys, target: Array, weight: Array | None, categories: tuple[Category, ...]
    ) -> TrainingData:
        """TrainingData of targets as they were observed."""
        pivot = pivot_of(target.min(axis=0), target.max(axis=0))
        return cls(
            keys, target - pivot if pivot.any() else target, weight, categories, pivot
        )  # fmt: skip

    def observed(self, answer: Array) -> Array:
        """Targets, or answers (…, k) made of them, as they would be observed."""
        return answer + self.pivot if self.pivot.any() else answer

    @property
    def copies(self) -> Array:
        """The weight of each row as a number of copies of it."""
        return np.ones(len(self.target)) if self.weight is None else self.weight

    @property
    def mean(self) -> Array:
        return np.average(self.target, axis=0, weights=self.weight)

    def present(self, column: int) -> tuple[Array, Array]:
        """The numbers of a column that are not missing, (p, 1), and their copies (p,)."""
        number = self.keys.number[:, column]
        present = ~np.isnan(number)
        return number[present, None], self.copies[present]


class Width(NamedTuple):
    """The bandwidths and smoothings of a kernel."""

    bandwidth: Array  # (d,): one for each number; or their units, where `neighbors` is given
    smoothing: Array  # (c,): how much other categories weigh, in each column
    neighbors: int | None = None  # each query's bandwidth reaches so many neighbours


def pivot_of(low: Array, high: Array) -> Array:
    """The pivot that is subtracted from targets between `low` and `high`, each (k,).

    It preserves the digits in which targets far from 0 differ. It is 0 unless the subtraction is
    exact, which holds for targets between half of the pivot and twice the pivot.
    """
    middle = low / 2 + high / 2
    least = np.minimum(np.abs(low), np.abs(high))
    exact = (np.sign(low) == np.sign(high)) & (least >= np.abs(middle) / 2)
    return np.where(exact, middle, 0.0)
