"""Categories: equal or not, smoothed after Aitchison and Aitken.

The kernel of a column with C categories is 1 − λ where query and key agree and λ/(C − 1) where
they do not. λ = 0 looks at its own category alone, λ = (C − 1)/C at all alike.
"""

from __future__ import annotations

import numpy as np

from qkv.regression.examples import Array, Codes


def log_factor(key: Codes, query: Codes, categories: tuple[int, ...], smoothing: Array) -> Array:
    """The log of the product of all categorical kernels, (n, m); -inf where it is 0."""
    logs = np.zeros((len(query), len(key)))
    for column, (count, share) in enumerate(zip(categories, smoothing, strict=True)):
        equal = query[:, None, column] == key[None, :, column]
        with np.errstate(divide="ignore"):
            other = np.log(share / max(1, count - 1))
            logs += np.where(equal, np.log1p(-share), other)
    return logs


def most_smoothing(count: int) -> float:
    """The λ at which all categories count alike."""
    return (count - 1) / count
