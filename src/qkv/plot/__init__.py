"""Figures: each is a function from arrays to a Matplotlib figure, one file each."""

from __future__ import annotations

from qkv.plot.canvas import save
from qkv.plot.regression import Fitted, band, fits

__all__ = ["Fitted", "band", "fits", "save"]
