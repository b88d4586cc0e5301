"""How good a width is: leave-one-out error, generalised cross-validation, corrected AIC.

All need one pass: what the others say of each example, and its leverage, the share that it has in
its own fitted value.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from qkv.regression.examples import Array, Examples
from qkv.regression.local import Others


def loo(examples: Examples, others: Others) -> float:
    """The mean squared error of predicting each example from all others."""
    return _mean_square(examples, residuals(examples, others))


def gcv(examples: Examples, others: Others) -> float:
    """The mean squared residual over (1 − tr L / n)²."""
    square, trace = _fitted(examples, others)
    rest = 1 - trace / examples.copies.sum()
    return float(square / rest**2) if rest > 1e-9 else math.inf


def aicc(examples: Examples, others: Others) -> float:
    """log σ² + (1 + tr L / n) / (1 − (tr L + 2) / n), after Hurvich, Simonoff and Tsai."""
    square, trace = _fitted(examples, others)
    n = examples.copies.sum()
    rest = 1 - (trace + 2) / n
    if rest <= 0:
        return math.inf
    return float(math.log(max(square, 1e-300)) + (1 + trace / n) / rest)


CRITERIA: dict[str, Callable[[Examples, Others], float]] = {"loo": loo, "aicc": aicc, "gcv": gcv}


def residuals(examples: Examples, others: Others) -> Array:
    """What each example differs by from what the others say of it, (m, k)."""
    return examples.target - others.answer


def _mean_square(examples: Examples, residual: Array) -> float:
    return float(np.average(residual**2, axis=0, weights=examples.weight).mean())


def _fitted(examples: Examples, others: Others) -> tuple[float, float]:
    """The mean squared residual of the fit itself, and the trace of the smoother."""
    # y − ŷ = (1 − L)(y − ŷ₋), so the fit need not be computed a second time.
    left = residuals(examples, others) * (1 - others.leverage[:, None])
    taken = np.minimum(examples.copies, 1.0)
    return _mean_square(examples, left), float((others.leverage * examples.copies / taken).sum())
