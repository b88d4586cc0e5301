"""Tokens as the tile functions take them: transformed once, whatever they are compared with."""

from __future__ import annotations

from typing import Any

from qkv.jit import device
from qkv.jit.builtins import invoke, noinline
from qkv.operators.fused.matrix import copy_into, transpose_into


@device
def pack_rows(functions: Any, tokens: Any, packed: Any, reach: Any) -> None:
    """Queries or keys (rows, d) as they are, behind what `transform` makes of them."""
    noinline()
    d = tokens.shape[1]
    plain = packed.shape[1] - d
    for r in range(tokens.shape[0]):
        copy_into(tokens[r], packed[r, plain:])
    reach[0] = 0
    if functions.transform != 0:
        invoke(functions.transform, (tokens, packed, reach))


@device
def pack_columns(functions: Any, key: Any, packed: Any, reach: Any) -> None:
    """Keys (width, d) as columns, behind what `transform` makes of them."""
    noinline()
    lines = packed[packed.shape[0] - key.shape[1] :]
    transpose_into(key, lines)
    reach[0] = 0
    if functions.transform != 0:
        invoke(functions.transform, (lines, packed, reach))
