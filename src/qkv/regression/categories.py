"""Kernels of categories: equal or not (Aitchison and Aitken), or ordered (Wang and van Ryzin).

Of C categories, those that are equal or not weigh 1 − λ where query and key agree and λ/(C − 1)
where they do not: λ = 0 looks at its own category alone, λ = (C − 1)/C at all alike. Those that
are ordered weigh 1 where they agree and λ^|i − j| / 2 where they lie |i − j| apart; both texts
have a factor 1 − λ before it, which all keys share. A missing one weighs what categories weigh on
average, so it takes no part in telling them apart.
"""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Array: TypeAlias = npt.NDArray[np.float64]
Codes: TypeAlias = npt.NDArray[np.int64]

UNSEEN, MISSING = -1, -2  # codes beside the places of known categories


class Category(NamedTuple):
    """What is known of a column of categories."""

    size: int
    places: Array | None = None  # (size,): where ordered ones stand; None: equal or not

    @property
    def most_smoothing(self) -> float:
        """The λ beyond which none is: all categories count alike, or as alike as they can."""
        return 1.0 if self.places is not None else (self.size - 1) / max(1, self.size)

    def log_kernel(self, share: float) -> Array:
        """(C + 2, C + 2), by the codes of two rows; the last two are MISSING and UNSEEN."""
        count = self.size
        if self.places is None:
            other = share / max(1, count - 1)
            known = np.where(np.eye(count, dtype=bool), 1 - share, other)
        else:
            apart = np.abs(self.places[:, None] - self.places)
            other = 0.5 * share
            known = np.where(apart == 0, 1.0, 0.5 * share**apart)
        table = np.full((count + 2, count + 2), other)
        table[:count, :count] = known
        table[UNSEEN, UNSEEN] = 1.0
        average = known.mean() if count else 1.0
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


def log_own(code: Codes, categories: tuple[Category, ...], smoothing: Array) -> Array:
    """The same of each row with itself, (n,)."""
    logs = np.zeros(len(code))
    for column, (category, share) in enumerate(zip(categories, smoothing, strict=True)):
        logs += category.log_kernel(share)[code[:, column], code[:, column]]
    return logs
