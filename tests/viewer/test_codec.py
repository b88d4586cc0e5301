"""Twelve bits hold three decimal digits, and a page stays small."""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from shown import exact

import qkv
from qkv.visualization.viewer.codec import NOT_A_NUMBER, TINY, encode, pack


def decode(code: int) -> float:
    """The table in the packing's docstring, row by row."""
    if code < 1000:
        return code / 10**6
    if code < 1900:
        return (code - 900) / 10**5
    if code < 2800:
        return (code - 1800) / 10**4
    return (code - 2700) / 10**3


def unpack(text: str, count: int) -> list[int]:
    bits = int.from_bytes(base64.b64decode(text), "little")
    return [bits >> 12 * i & 4095 for i in range(count)]


@given(st.floats(0, 1, width=32))
def test_a_stored_weight_is_the_weight_rounded_to_three_digits(weight: float) -> None:
    (code,) = encode(np.array([weight])).tolist()
    if 0 < weight < 5e-7:
        assert code == TINY
    else:
        assert decode(code) == pytest.approx(float(exact(weight)), rel=1e-12)
        assert abs(decode(code) - weight) <= max(0.00501 * weight, 5.01e-7)


@pytest.mark.parametrize(
    ("weight", "code"),
    [
        (0, 0), (1e-9, TINY), (1e-6, 1), (0.000999, 999), (0.0009996, 1000), (0.001, 1000),
        (0.000996, 996), (0.00999, 1899), (0.009996, 1900), (0.01, 1900), (0.0999, 2799),
        (0.1, 2800), (0.9994, 3699), (0.9996, 3700), (1, 3700), (float("nan"), NOT_A_NUMBER),
    ],
)  # fmt: skip
def test_codes_at_the_borders_of_decades(weight: float, code: int) -> None:
    assert encode(np.array([weight])).tolist() == [code]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=7))
def test_packing_keeps_the_order(weights: list[float]) -> None:
    array: npt.NDArray[np.float64] = np.array(weights)
    assert unpack(pack(array), len(weights)) == encode(array).tolist()


def test_six_layers_of_twelve_heads_over_128_tokens_make_at_most_2_5_megabytes() -> None:
    x = torch.randn(6, 12, 128, 32)
    view = qkv.view(qkv.weights(x, x), [f"##token{i}" for i in range(128)], layers=range(6))
    from qkv.visualization.viewer.page import page

    assert len(page(view.data).encode()) <= 2_500_000
