"""Beam search: :mod:`qkv.translate.decoding.search`, under the name that users import."""

from __future__ import annotations

from qkv.translate.decoding.search import Considered, Hypothesis, Search, search

__all__ = ["Considered", "Hypothesis", "Search", "search"]
