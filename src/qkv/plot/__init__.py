"""Figures: each is a function from arrays to a Matplotlib figure, one file each."""

from __future__ import annotations

from qkv.plot.alignment import alignment
from qkv.plot.canvas import save
from qkv.plot.heads import heads
from qkv.plot.kernels import kernels
from qkv.plot.matrix import matrix
from qkv.plot.plan import plan
from qkv.plot.regression import Fitted, band, fits
from qkv.plot.row import row
from qkv.plot.table import soft_lookup

__all__ = [
    "Fitted",
    "alignment",
    "band",
    "fits",
    "heads",
    "kernels",
    "matrix",
    "plan",
    "row",
    "save",
    "soft_lookup",
]
