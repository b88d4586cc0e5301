"""Figures: each is a function from arrays to a Matplotlib figure, one file each."""

from __future__ import annotations

from qkv.plot.canvas import save
from qkv.plot.table import soft_lookup

__all__ = ["save", "soft_lookup"]
