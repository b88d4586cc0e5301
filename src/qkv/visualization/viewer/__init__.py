"""The interactive view: `qkv.view(...)`; this package has another name, or it would hide it."""

from __future__ import annotations

from qkv.visualization.viewer.view import View, view

__all__ = ["View", "view"]
