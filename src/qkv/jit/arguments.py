"""How a call reaches machine code: one block of 64-bit words, the same for all its threads.

The header comes first. Then each operand: a number, or the address and the shape of an array. Then
each buffer: its place in the scratch of a thread, and its shape. So a kernel is a C function of
one pointer, which any thread can call without Python.
"""

from __future__ import annotations

import math
import struct
from array import array
from collections.abc import Iterable
from ctypes import addressof, c_char
from typing import Any

import numpy as np
import torch

from qkv.jit.scratch import Scratch
from qkv.jit.signature import Leaf

# The words of the header: what went wrong; the next thread's number; the next piece of work, how
# many there are, and how many a thread takes at a time; where the first thread's scratch is, and
# how far apart those of the others are.
STATUS, THREAD, NEXT, COUNT, GRAIN, ROOM, STRIDE = range(7)
HEADER = 7

Operand = Any  # a Tensor, a NumPy array, None, or a number

#: The name of each type, whoever's it is.
NAMES: dict[Any, str] = {
    **{np.dtype(name): name for name in ("float32", "float64", "int64", "int32", "uint16", "bool")},
    **{getattr(torch, name): name for name in ("float32", "float64", "int64", "int32", "bool")},
}


def pack(
    leaves: tuple[Leaf, ...], operands: Iterable[Operand], real: str
) -> tuple[list[int], list[int]]:
    """The words of some operands, and the places of the addresses among them, yet to be filled.

    Arrays are contiguous, their leading axes are taken as one; None is an array without entries.
    Machine code sees addresses only: this is where types are checked.
    """
    words: list[int] = []
    places: list[int] = []
    for (name, (of, axes)), operand in zip(leaves, operands, strict=True):
        if axes == 0:
            floating = of in ("real", "float64")
            words.append(_bits(operand) if floating else int(operand))
        elif operand is None:
            words += (0,) * (1 + axes)
        else:
            shape = operand.shape
            extra = len(shape) - axes
            dtype = NAMES.get(operand.dtype)
            if dtype != (real if of == "real" else of) or extra < -1 or not _contiguous(operand):
                shown = f"{dtype or operand.dtype} of shape {tuple(shape)}"
                wanted = f"contiguous {real if of == 'real' else of} of {axes} axes"
                raise TypeError(f"{name} must be {wanted}, got {shown}")
            places.append(len(words))
            words.append(0)
            if extra > 0:
                words.append(math.prod(shape[: extra + 1]))
                words += shape[extra + 1 :]
            else:
                words += shape if extra == 0 else (1, *shape)
    return words, places


def block(operands: list[int], scratch: Scratch | None, count: int, grain: int) -> array[int]:
    """The words of a call: `count` pieces of work, `grain` at a time."""
    size = 0 if scratch is None else scratch.size
    words = array("q", [0, 0, 0, count, grain, 0, size, *operands])
    if scratch is not None:
        words.extend(scratch.words)
    return words


def type_of(leaves: tuple[Leaf, ...], operands: Iterable[Operand]) -> str:
    """The type of the first array that is of the type of the call; float64 if there is none."""
    for (_, (of, axes)), operand in zip(leaves, operands, strict=True):
        if of == "real" and axes and operand is not None:
            return NAMES.get(operand.dtype, str(operand.dtype))
    return "float64"


def _contiguous(operand: Operand) -> bool:
    if isinstance(operand, torch.Tensor):
        return operand.is_contiguous()
    return bool(operand.flags.c_contiguous)


def address_of(operand: Operand) -> int:
    if isinstance(operand, torch.Tensor):
        return operand.data_ptr()
    if operand.size == 0:
        return 0
    if operand.flags.writeable:  # four times as quick as the interface, for every call
        return addressof(c_char.from_buffer(operand))
    address: int = operand.__array_interface__["data"][0]
    return address


def _bits(number: float) -> int:
    bits: int = struct.unpack("q", struct.pack("d", number))[0]
    return bits


def has_kernels(tensor: torch.Tensor) -> bool:
    """Whether kernels are compiled for tensors of this device and type."""
    return tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64)
