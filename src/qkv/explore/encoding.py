"""Arrays in responses: base64 of little-endian floats, a third of the size of JSON."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np


def floats(array: Any) -> str:
    """An array of any shape as float32, in order."""
    return base64.b64encode(np.ascontiguousarray(array, "<f4").tobytes()).decode("ascii")


def doubles(array: Any) -> str:
    """An array of any shape as float64, in order."""
    return base64.b64encode(np.ascontiguousarray(array, "<f8").tobytes()).decode("ascii")


def finite(number: float) -> float | None:
    """A number as JSON has it: NaN and infinity become null."""
    return float(number) if np.isfinite(number) else None
