"""Figures: each is a function from arrays to a Matplotlib figure, one file each."""

from __future__ import annotations

from qkv.visualization.plot.alignment import alignment
from qkv.visualization.plot.canvas import save
from qkv.visualization.plot.heads import heads
from qkv.visualization.plot.kernels import kernels
from qkv.visualization.plot.matrix import matrix
from qkv.visualization.plot.plan import plan
from qkv.visualization.plot.regression import Fitted, band, fits
from qkv.visualization.plot.row import row
from qkv.visualization.plot.table import soft_lookup

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
