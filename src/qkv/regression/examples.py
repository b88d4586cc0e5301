"""What was seen: keys, numbers and categories, with targets and weights; and how wide to look."""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
Codes: TypeAlias = npt.NDArray[np.int64]
Places: TypeAlias = npt.NDArray[np.intp]


class Keys(NamedTuple):
    """Rows as attention compares them."""

    number: Array  # (n, d): columns that have a distance
    code: Codes  # (n, c): columns that are equal or not; -1 is a category never seen

    def take(self, rows: Any) -> Keys:
        return Keys(self.number[rows], self.code[rows])

    def __len__(self) -> int:
        return len(self.number)


class Examples(NamedTuple):
    """The training rows, those of weight 0 left out."""

    keys: Keys
    target: Array  # (m, k)
    weight: Array | None  # (m,) > 0; None where all are 1
    categories: tuple[int, ...]  # how many each column of codes has

    @property
    def copies(self) -> Array:
        """The weight of each row as a number of copies of it."""
        return np.ones(len(self.target)) if self.weight is None else self.weight

    @property
    def mean(self) -> Array:
        return np.average(self.target, axis=0, weights=self.weight)


class Width(NamedTuple):
    """How wide to look."""

    bandwidth: Array  # (d,): one for each number; or their units, where `neighbors` is given
    smoothing: Array  # (c,): the share of weight that goes to other categories
    neighbors: int | None = None  # each query looks as far as so many neighbours
