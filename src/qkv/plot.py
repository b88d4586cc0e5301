"""Figures: :mod:`qkv.visualization.plot`, under the name that users import."""

from __future__ import annotations

from qkv.visualization.plot import (
    Fitted,
    alignment,
    band,
    fits,
    heads,
    kernels,
    matrix,
    plan,
    row,
    save,
    soft_lookup,
)

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
