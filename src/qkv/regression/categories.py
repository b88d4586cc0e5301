"""Kernels of categories: equal or not (Aitchison and Aitken), or ordered (Wang and van Ryzin).

Of C unordered categories, a key weighs 1 − λ where it agrees with the query and λ/(C − 1) where it
does not: with λ = 0 only the query's category counts, with λ = (C − 1)/C all equally. Of ordered
ones it weighs 1 where they agree and λ^|i − j| / 2 where they lie |i − j| apart; both papers have a
factor 1 − λ before it, which all keys share. A missing category has the average weight, so it does
not discriminate between categories.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
Codes: TypeAlias = npt.NDArray[np.int64]

UNSEEN, MISSING = -1, -2  # codes other than the indices of known categories


class Category(NamedTuple):
    """The categories of a column."""

    size: int
    places: Array | None = None  # (size,): where ordered ones stand; None: equal or not

    @property
    def most_smoothing(self) -> float:
        """The largest λ: all categories count equally, or as equally as they can."""
        return 1.0 if self.places is not None else (self.size - 1) / max(1, self.size)

    def log_kernel(self, share: float) -> Array:
        """(C + 2, C + 2), by the codes of two rows; the last two are MISSING and UNSEEN."""
        count = self.size
        if self.places is None:
            other = share / max(1, count - 1)
            kernel = np.where(np.eye(count, dtype=bool), 1 - share, other)
        else:
            apart = np.abs(self.places[:, None] - self.places)
            other = 0.5 * share
            kernel = np.where(apart == 0, 1.0, 0.5 * share**apart)
        table = np.full((count + 2, count + 2), other)
        table[:count, :count] = kernel
        table[UNSEEN, UNSEEN] = 1.0
        average = kernel.mean() if count else 1.0
        table[MISSING, :] = table[:, MISSING] = average
        with np.errstate(divide="ignore"):
            return np.asarray(np.log(table))


def log_factor(
    key: Codes, query: Codes, categories: tuple[Category, ...], smoothing: Array
) -> Array:
    """The log of the product of all categorical kernels, (n, m); -inf where it is 0."""
    logs = np.zeros((len(query), len(key)))
    for column, (category, share) in enumerate(zip(categories, smoothing, strict=True)):
        logs += category.log_kernel(share)[query[:, None, column], key[None, :, column]]
    return logs


def log_self_factor(code: Codes, categories: tuple[Category, ...], smoothing: Array) -> Array:
    """The same for each row with itself, (n,)."""
    logs = np.zeros(len(code))
    for column, (category, share) in enumerate(zip(categories, smoothing, strict=True)):
        logs += category.log_kernel(share)[code[:, column], code[:, column]]
    return logs
