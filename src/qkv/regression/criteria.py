"""Criteria for a bandwidth: leave-one-out error, generalised cross-validation, corrected AIC.

All need one pass: the leave-one-out prediction of each example, and its leverage, the share that it
has in its own fitted value.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from qkv.regression.local import Others
from qkv.regression.training_data import Array, TrainingData
from qkv.staircase import Staircase


def loo(examples: TrainingData, others: Others) -> float:
    """The mean squared error of predicting each example from all others."""
    return _mean_square(examples, residuals(examples, others))


def gcv(examples: TrainingData, others: Others) -> float:
    """The mean squared residual over (1 − tr L / n)²."""
    return float(_gcv(*_fitted(examples, others), examples.copies.sum()))


def aicc(examples: TrainingData, others: Others) -> float:
    """log σ² + (1 + tr L / n) / (1 − (tr L + 2) / n), after Hurvich, Simonoff and Tsai."""
    return float(_aicc(*_fitted(examples, others), examples.copies.sum()))


def along(stairs: Staircase, criterion: str, n: float) -> Array:
    """A criterion at every step of a boxcar's curve, of n copies of examples."""
    if criterion == "loo":
        return stairs.left_out / n
    errors = {"gcv": _gcv, "aicc": _aicc}[criterion](stairs.fitted / n, stairs.trace, n)
    return np.asarray(errors)


def _gcv(square: Any, trace: Any, n: float) -> Any:
    remainder = 1 - trace / n
    defined = remainder > 1e-9
    return np.where(defined, square / np.where(defined, remainder, 1.0) ** 2, np.inf)


def _aicc(square: Any, trace: Any, n: float) -> Any:
    remainder = 1 - (trace + 2) / n
    defined = remainder > 0
    bound = (1 + trace / n) / np.where(defined, remainder, 1.0)
    return np.where(defined, np.log(np.maximum(square, 1e-300)) + bound, np.inf)


CRITERIA: dict[str, Callable[[TrainingData, Others], float]] = {
    "loo": loo,
    "aicc": aicc,
    "gcv": gcv,
}


def residuals(examples: TrainingData, others: Others) -> Array:
    """The difference between each example and its leave-one-out prediction, (m, k)."""
    return examples.target - others.answer


def _mean_square(examples: TrainingData, residual: Array) -> float:
    return float(np.average(residual**2, axis=0, weights=examples.weight).mean())


def _fitted(examples: TrainingData, others: Others) -> tuple[float, float]:
    """The mean squared residual of the fit itself, and the trace of the smoother."""
    # y − ŷ = (1 − L)(y − ŷ₋), so the fit need not be computed a second time.
    residual = residuals(examples, others) * (1 - others.leverage[:, None])
    self_weight = np.minimum(examples.copies, 1.0)
    return _mean_square(examples, residual), float(
        (others.leverage * examples.copies / self_weight).sum()
    )
