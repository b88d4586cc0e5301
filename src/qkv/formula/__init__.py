"""Formulas written in torch, as programs that are differentiated and compiled."""

from __future__ import annotations

from qkv.formula.program import Program as Program

#: The programs that were traced, by the kind that a fused form names.
PROGRAMS: dict[str, Program] = {}
