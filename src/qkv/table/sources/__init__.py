"""Where rows come from: anything that speaks Arrow. One kind of source a file."""

from __future__ import annotations

from qkv.table.sources.base import Part, Request, Scan, Source
from qkv.table.sources.open import open_source

__all__ = ["Part", "Request", "Scan", "Source", "open_source"]
