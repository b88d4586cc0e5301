"""The elementary functions of compiled formulas, against libm in a wider type."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tile import apply

from qkv.formula.program import TORCH

LIMITS = {
    "exp": (-80.0, 80.0), "expm1": (-20.0, 20.0), "log": (1e-30, 1e30), "log1p": (-0.999, 1e6),
    "sqrt": (0.0, 1e6), "sin": (-1e4, 1e4), "cos": (-1e4, 1e4), "tanh": (-12.0, 12.0),
    "sigmoid": (-40.0, 40.0), "softplus": (-40.0, 40.0), "erf": (-7.0, 7.0),
}  # fmt: skip

#: Units in the last place, float32 and float64; more where a difference of two steps is taken.
MOST = {"expm1": 8, "softplus": 6, "sigmoid": 5, "erf": 4, "tanh": 5}


def _grid(op: str, real: str) -> np.ndarray:
    low, high = LIMITS[op]
    chance = np.random.default_rng(3)
    near = chance.normal(size=4000) * np.exp(chance.uniform(-12, 1, size=4000))
    wide = chance.uniform(low, high, size=4000)
    if op == "log":
        wide = np.exp(chance.uniform(np.log(low), np.log(high), size=4000))
    numbers = np.concatenate([near, wide]).clip(low, high)
    return numbers.astype(real)


@pytest.mark.parametrize("op", LIMITS)
@pytest.mark.parametrize("real", ["float32", "float64"])
def test_a_few_units_in_the_last_place(op: str, real: str) -> None:
    x = _grid(op, real)
    exact = TORCH[op](torch.from_numpy(x).double()).numpy()
    if op == "softplus":  # torch's own has a threshold and is x beyond it
        exact = np.where(x > 20, x.astype(float), np.logaddexp(0.0, x.astype(float)))
    found = apply(op, x)
    unit = np.maximum(np.abs(np.spacing(exact.astype(real))), np.finfo(real).tiny).astype(float)
    if op in ("sin", "cos"):
        unit = np.maximum(unit, np.finfo(real).eps / 2)  # near their zeros: absolute
    worst = np.abs(found.astype(float) - exact) / unit
    assert worst.max() <= MOST.get(op, 3), (x[worst.argmax()], worst.max())


SPECIAL = [0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 89.0, -104.0, 710.0, -746.0, 1e-40, 30.0]


@pytest.mark.parametrize("op", [*LIMITS, "abs", "sign", "neg", "root"])
@pytest.mark.parametrize("real", ["float32", "float64"])
def test_nan_and_infinities_as_torch_has_them(op: str, real: str) -> None:
    x = np.array(SPECIAL, real)
    if op == "root":
        x = np.array([0.0, 4.0, np.inf, np.nan, 2.25], real)
    expected = TORCH[op](torch.from_numpy(x)).numpy()
    tolerance = 1e-6 if real == "float32" else 1e-13
    # What lies below the smallest normal number may become 0.
    np.testing.assert_allclose(apply(op, x), expected, rtol=tolerance, atol=1e-37, equal_nan=True)


@pytest.mark.parametrize("op", ["maximum", "minimum", "power"])
def test_two_operands(op: str) -> None:
    x = np.array([0.0, 0.5, 1.0, 2.0, 9.0, np.inf, np.nan, -1.5], "float64")
    for other in (1.5, 0.0, -0.7, 10.0, -3.0, np.nan):
        expected = TORCH[op](torch.from_numpy(x), torch.tensor(other, dtype=torch.float64))
        np.testing.assert_allclose(apply(op, x, other), expected.numpy(), rtol=1e-13)
