"""The interactive view: `qkv.view(...)`; a package of that name would hide the function."""

from __future__ import annotations

from qkv.visualization.viewer.view import View, view

__all__ = ["View", "view"]
