"""Weights in twelve bits each: decimal numbers of three digits, so that every digit shown is right.

A code below 1,000 counts millionths. From there on each decade has 900 codes, for the three-digit
numbers 100 to 999 in units of 10⁻⁵, 10⁻⁴ and 10⁻³, up to 3,700 for the weight 1. So a weight is
stored as it reads when rounded to three significant digits, or below 0.0001 to six decimals: off
by no more than half a unit of its last digit, at most 0.5 %, or 5·10⁻⁷.
"""

from __future__ import annotations

import base64

import numpy as np
import numpy.typing as npt

#: The code of weights that round to 0, so that tiny weights differ from masked keys.
TINY = 3701
NOT_A_NUMBER = 4095


def encode(weights: npt.NDArray[np.float64]) -> npt.NDArray[np.uint16]:
    """A code for each weight between 0 and 1."""
    digits = codes = np.rint(weights * 1e6)
    for decade, units in enumerate((1e5, 1e4, 1e3), start=1):
        too_many = digits >= 1000
        digits = np.where(too_many, np.rint(weights * units), 0)
        codes = np.where(too_many, 900 * decade + digits, codes)
    codes = np.where((codes == 0) & (weights > 0), TINY, codes)
    return np.where(np.isnan(weights), NOT_A_NUMBER, codes).astype(np.uint16)


def pack(weights: npt.NDArray[np.float64]) -> str:
    """The weights' codes in order, two in three bytes, as base64."""
    codes = encode(weights).ravel()
    pairs = np.append(codes, np.zeros(codes.size % 2, np.uint16)).reshape(-1, 2)
    low, high = pairs[:, 0], pairs[:, 1]
    packed = np.stack([low & 255, low >> 8 | (high & 15) << 4, high >> 4], axis=1)
    return base64.b64encode(packed.astype(np.uint8).tobytes()).decode("ascii")
