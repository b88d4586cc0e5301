"""Programs of formulas that the package brings: traced once, with their constants in them.

Their columns are those that the formula is given, in the order that a program wants: numbers first,
then features. So nothing has to be followed or gathered at a call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qkv.formula.program import Node, Program
from qkv.formula.record import Recorder

#: Sizes of the probes: no two alike, so that axes can be told apart.
QUERIES, KEYS, COLUMNS = 11, 13, 7


class _Fixed(Recorder):
    """Numbers are constants of the program, since no call brings others."""

    def _node(self, x: Any, axes: Any) -> Node:
        return super()._node(x, axes) if isinstance(x, Tensor) else self.graph.constant(float(x))


def program_of(
    formula: Callable[..., Tensor], *parameters: Tensor, proportional: bool = False
) -> Program:
    """The program of formula(query, key, *parameters); it differentiates parameters if one of these
    requires a gradient."""
    probes = torch.ones(QUERIES, COLUMNS), torch.ones(KEYS, COLUMNS)
    session = _Fixed(*probes)
    with torch.no_grad():
        result = formula(session.query, session.key, *parameters)
    session.close()
    drawn = session.finish(result, batch=0)
    learned = any(parameter.requires_grad for parameter in parameters)
    slots = (slot._replace(wanted=learned or slot.kind != "parameter") for slot in drawn.slots)
    return Program(tuple(slots), drawn.axes, drawn.root, proportional)
