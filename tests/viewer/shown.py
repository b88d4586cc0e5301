"""What the view should say, computed the slow way."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from playwright.sync_api import Page

#: Saves a view and opens it in a browser.
Open = Callable[..., Page]


def exact(weight: float) -> str:
    """Three significant digits; at least three decimals and at most six."""
    if math.isnan(weight):
        return "NaN"
    if weight == 0:
        return "0"
    if weight < 5e-7:
        return "< 0.000001"
    if float(f"{weight:.3f}") == 1:
        return "1.000"
    return f"{weight:.6f}" if float(f"{weight:.6f}") < 1e-4 else f"{weight:#.3g}"


def merged(weights: npt.NDArray[np.float64], groups: list[list[int]]) -> npt.NDArray[np.float64]:
    """The sum over a key's tokens, the mean over a query's."""
    found = np.zeros((len(groups), len(groups)))
    for q, query in enumerate(groups):
        for k, key in enumerate(groups):
            found[q, k] = sum(weights[i, j] for i in query for j in key) / len(query)
    return found


def without(weights: npt.NDArray[np.float64], hidden: list[int]) -> npt.NDArray[np.float64]:
    """The other keys' weights, made to sum to 1 again."""
    found = weights.copy()
    for row in found:
        row[hidden] = 0
        if row.sum() > 0:
            row /= row.sum()
    return found
