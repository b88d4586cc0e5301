"""The explorer: a page on this machine where attention can be played with."""

from __future__ import annotations

from qkv.explore.server import serve

__all__ = ["serve"]
