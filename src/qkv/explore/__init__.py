"""The explorer: a local web page for experiments with attention."""

from __future__ import annotations

from qkv.explore.server import serve

__all__ = ["serve"]
