"""Figures: :mod:`qkv.visualization.plot`, under the name that users import."""

from __future__ import annotations

from qkv.visualization.plot import *  # noqa: F403
from qkv.visualization.plot import __all__ as __all__
