"""A small kernel, quick to compile: what is true of it is true of all."""

from __future__ import annotations

from typing import Any, NamedTuple

from qkv.jit import callback, device, kernel
from qkv.jit.builtins import exp, invoke
from qkv.jit.signature import Int1, PerThread, Real, Real1, Real2

OFFSET = 3.0


class Inputs(NamedTuple):
    tokens: Real2  # (n, d)
    scale: Real


class Scratch(NamedTuple):
    line: Real1  # (d,)


@device
def _shifted(x: Any) -> Any:
    return x + OFFSET


@callback
def exponentials(line: Real1, out: Real1, factor: Real) -> None:
    for i in range(line.size):
        out[i] = exp(line[i]) * factor


@kernel
def run(
    start: int,
    stop: int,
    inputs: Inputs,
    function: int,
    out: Real2,
    visits: Int1,
    scratch: PerThread[Scratch],
) -> None:
    """out = e^tokens * scale + OFFSET; counts the visits to each row."""
    for row in range(start, stop):
        invoke(function, (inputs.tokens[row], scratch.line, inputs.scale))
        for i in range(scratch.line.size):
            out[row, i] = _shifted(scratch.line[i])
        visits[row] += 1
