"""What a kernel takes: one block of 64-bit words, the same for all threads of a call.

The header comes first. Then each operand: a number, or the address and the shape of an array. Then
each buffer: its place in the space of a thread, and its shape. So a kernel is a C function of one
pointer, which any thread can call without Python.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from qkv.operators.fused.space import Space

Types = dict[str, tuple[str, int]]  # the type and the number of axes, 0 for a number

# The words of the header: what went wrong; the next thread's number; where the first thread's space
# is, and how far apart those of the others are; the next piece of work.
STATUS, THREAD, ROOM, STRIDE, TICKET = range(5)
HEADER = 5

_INPUTS: Types = {
    "query": ("real", 3),
    "key": ("real", 3),
    "value": ("real", 3),
    "parameter": ("real", 1),
    "index": ("int64", 2),
    "start": ("int64", 2),
    "stop": ("int64", 2),
    "mask": ("bool", 3),
    "bias": ("real", 3),
    "row_key": ("uint32", 2),
    "threshold": ("uint32", 0),
    "dropout_scale": ("real", 0),
}
_OUTPUTS: Types = {
    "answer": ("real", 3),
    "log_total": ("real", 2),
    "normal": ("real", 3),
    "kept": ("real", 3),
}
#: The operands of each driver, in the order of its parameters.
OPERANDS: dict[str, Types] = {
    "forward": {"chunk": ("int64", 0), **_INPUTS, **_OUTPUTS},
    "backward": {
        "piece": ("int64", 0),
        "pieces": ("int64", 0),
        "order": ("int64", 1),
        "group_start": ("int64", 1),
        **_INPUTS,
        **_OUTPUTS,
        "grad_answer": ("real", 3),
        "grad_log_total": ("real", 2),
        "out_query": ("float64", 4),
        "out_key": ("real", 3),
        "out_value": ("real", 3),
        "out_parameter": ("float64", 2),
        "out_bias": ("real", 4),
    },
}

_TORCH = {
    "int64": torch.int64,
    "float64": torch.float64,
    "bool": torch.bool,
    "uint32": torch.int32,  # the same bits
}

Operand = Any  # a Tensor, None, or a number


class Expected(NamedTuple):
    """An operand as a driver takes it."""

    name: str
    dtype: torch.dtype
    axes: int


def expected(way: str, real: torch.dtype) -> tuple[Expected, ...]:
    """The operands of a driver, where the inputs are of type `real`."""
    return tuple(
        Expected(name, real if of == "real" else _TORCH[of], axes)
        for name, (of, axes) in OPERANDS[way].items()
    )


def pack(
    driver: tuple[Expected, ...], operands: Sequence[Operand], space: Space, room: int
) -> array[int]:
    """The words of a call whose threads share the memory at `room`.

    Arrays are contiguous, their leading axes are taken as one; None is an array without entries.
    The kernel sees addresses only: this is where types are checked, and the caller keeps the
    operands alive.
    """
    words = [0, 0, room, space.size, 0]
    for (name, dtype, axes), operand in zip(driver, operands, strict=True):
        if axes == 0:
            words.append(_bits(operand) if dtype.is_floating_point else operand)
        elif operand is None:
            words += (0,) * (1 + axes)
        else:
            shape = operand.shape
            extra = len(shape) - axes
            if operand.dtype is not dtype or extra < -1 or not operand.is_contiguous():
                shown = f"{operand.dtype} of shape {tuple(shape)}"
                wanted = f"contiguous {dtype} of {axes} axes"
                raise TypeError(f"{name} must be {wanted}, got {shown}")
            words.append(operand.data_ptr())
            if extra > 0:
                words.append(math.prod(shape[: extra + 1]))
                words += shape[extra + 1 :]
            else:
                words += shape if extra == 0 else (1, *shape)
    packed = array("q", words)
    packed.extend(space.words)
    return packed


def _bits(number: float) -> int:
    bits: int = struct.unpack("q", struct.pack("d", number))[0]
    return bits
