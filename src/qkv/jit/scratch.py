"""The buffers that each thread of a kernel works in.

They are laid out here, so that kernels make no arrays: one that does counts references to all it
touches, and needs Numba beside it to run. Each thread's scratch begins on a cache line of its own.

Memory for them is kept from call to call: fresh memory costs a page fault every 4 KiB, which for
short sequences takes longer than the work.
"""

from __future__ import annotations

import math
import os
from array import array
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from qkv.jit.signature import Group

LINE = 64  # bytes of a cache line

LARGEST = 2**26  # bytes of memory that is kept: beyond that the work outweighs the page faults
MOST = 8  # pieces of memory that are kept

_free: list[Tensor] = []  # taken from and given back by any thread, each step under Python's lock

_SIZES = {"float32": 4, "float64": 8, "int64": 8, "int32": 4, "uint16": 2, "bool": 1}


@dataclass(frozen=True)
class Scratch:
    """The bytes that a thread needs; of each buffer its place among them and its shape."""

    size: int
    words: array[int]


def lay_out(group: Group, real: str, shapes: Any) -> Scratch:
    """Buffers for the fields of a NamedTuple, `shapes` being such a tuple of their shapes."""
    words: list[int] = []
    size = 0
    for (name, (of, axes)), shape in zip(group.leaves, shapes, strict=True):
        if len(shape) != axes:
            raise TypeError(f"{name} must have {axes} axes, got the shape {shape}")
        words += (size, *shape)
        item = _SIZES[real if of == "real" else of]
        size += math.ceil(math.prod(shape) * item / LINE) * LINE
    return Scratch(size, array("q", words))


def take(size: int) -> Tensor:
    """Memory of at least so many bytes, to be given back after use."""
    try:
        while (memory := _free.pop()).numel() < size:
            pass  # too small for what is done now: let go
    except IndexError:
        memory = torch.empty(size, dtype=torch.uint8, device="cpu")
    return memory


def give_back(memory: Tensor) -> None:
    """Keep memory that nobody uses any more for the next call."""
    if memory.numel() <= LARGEST and len(_free) < MOST:
        _free.append(memory)


def release_memory() -> None:
    """Let go of all memory that is kept for later calls."""
    _free.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=release_memory)
