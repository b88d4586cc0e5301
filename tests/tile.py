"""Calling a formula's tile functions as the drivers do."""

from __future__ import annotations

import ctypes
import struct
from array import array
from typing import Any

import numpy as np

from qkv.formula.compiled import TileFunction
from qkv.formula.program import Graph, Program, Slot


def invoke(function: TileFunction, real: str, *operands: Any) -> None:
    """Call with arrays, whole numbers and floats, as words."""
    words: list[int] = []
    for operand in operands:
        if isinstance(operand, np.ndarray):
            words += [operand.ctypes.data, *operand.shape]
        elif isinstance(operand, float):
            words += struct.unpack("q", struct.pack("d", operand))
        else:
            words.append(operand)
    block = array("q", words)
    entry = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(function.address(real))
    entry(block.buffer_info()[0])


def apply(op: str, x: np.ndarray[Any, Any], *others: float) -> np.ndarray[Any, Any]:
    """An operation of programs on numbers, one by one, compiled."""
    graph = Graph()
    slots = (Slot("key", None, True), *(Slot("parameter", None, False) for _ in others))
    inputs = [graph.input(i, None) for i in range(len(slots))]
    program = Program(slots, 0, graph.node(op, *inputs), False)
    real = str(x.dtype)
    width = -(-len(x) // 16) * 16
    keys = np.zeros((1, width), real)
    keys[0, : len(x)] = x
    out = np.zeros((8, width), real)
    parameter = np.array([*others, 0.0], real)
    query = np.zeros((1, 1), real)
    invoke(TileFunction(program, "scores"), real, query, keys, parameter, out, 1, 0.0)
    return out[0, : len(x)]
