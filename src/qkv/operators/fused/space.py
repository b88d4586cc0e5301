"""The buffers that each thread of a kernel works in.

They are laid out here, so that kernels make no arrays: one that does counts references to all it
touches, and needs Numba beside it to run. Each thread's space begins on a cache line of its own.
"""

from __future__ import annotations

import math
from array import array
from dataclasses import dataclass
from functools import lru_cache

WIDTH = 256  # keys in a tile: the packed tile of a usual hidden size stays in the inner caches
ROWS = 8  # queries in a block
LINE = 64  # bytes of a cache line

Buffers = dict[str, tuple[str, tuple[int, ...]]]

# Columns that the packed form of a token takes for each of its own.
_PACKED = {"additive": 2}


@dataclass(frozen=True)
class Space:
    """The bytes that a thread needs; of each buffer its place among them and its shape."""

    size: int
    words: array[int]


def forward_buffers(chunk: int, depth: int, value_depth: int) -> Buffers:
    """What `forward_chunks` unpacks, in its order."""
    return {
        "packed_query": ("real", (chunk, depth)),
        "packed_key": ("real", (depth, WIDTH)),
        "value_lines": ("real", (value_depth, WIDTH)),
        "clean_key": ("real", (depth, WIDTH)),
        "clean_value": ("real", (WIDTH, value_depth)),
        "raw": ("real", (ROWS, WIDTH)),
        "logits": ("real", (ROWS, WIDTH)),
        "shift": ("real", (ROWS,)),
        "decay": ("float64", (ROWS,)),
        "added": ("real", (ROWS,)),
        "tile_answer": ("real", (ROWS, value_depth)),
        "reach": ("real", (chunk // ROWS + 1,)),
        "top": ("real", (chunk,)),
        "total": ("float64", (chunk,)),
        "running": ("float64", (chunk, value_depth)),
    }


def backward_buffers(d: int, depth: int, value_depth: int, parameters: int) -> Buffers:
    """What `backward_units` unpacks, in its order."""
    return {
        "packed_query": ("real", (ROWS, depth)),
        "packed_key": ("real", (depth, WIDTH)),
        "value_lines": ("real", (value_depth, WIDTH)),
        "clean_key": ("real", (depth, WIDTH)),
        "clean_value": ("real", (WIDTH, value_depth)),
        "clean_lines": ("real", (value_depth, WIDTH)),
        "raw": ("real", (ROWS, WIDTH)),
        "logits": ("real", (ROWS, WIDTH)),
        "weights": ("real", (ROWS, WIDTH)),
        "slopes": ("real", (ROWS, WIDTH)),
        "bias_slopes": ("real", (ROWS, WIDTH)),
        "block_query": ("real", (ROWS, d)),
        "chunk_key": ("real", (d, WIDTH)),
        "chunk_value": ("real", (value_depth, WIDTH)),
        "chunk_parameter": ("real", (parameters,)),
        "total_key": ("float64", (d, WIDTH)),
        "total_value": ("float64", (value_depth, WIDTH)),
        "total_bias": ("float64", (WIDTH,)),
    }


@lru_cache(maxsize=256)
def forward_space(kind: str, real_size: int, chunk: int, d: int, value_depth: int) -> Space:
    return _lay_out(forward_buffers(chunk, packed_depth(kind, d), value_depth), real_size)


@lru_cache(maxsize=256)
def backward_space(kind: str, real_size: int, d: int, value_depth: int, parameters: int) -> Space:
    depth = packed_depth(kind, d)
    return _lay_out(backward_buffers(d, depth, value_depth, parameters), real_size)


def packed_depth(kind: str, d: int) -> int:
    """The columns of a packed query or key of d columns."""
    return _PACKED.get(kind, 1) * d


#: The type and the number of axes of each buffer.
BUFFERS: dict[str, list[tuple[str, int]]] = {
    way: [(of, len(shape)) for of, shape in buffers.values()]
    for way, buffers in (
        ("forward", forward_buffers(1, 1, 1)),
        ("backward", backward_buffers(1, 1, 1, 1)),
    )
}


def _lay_out(buffers: Buffers, real_size: int) -> Space:
    words: list[int] = []
    size = 0
    for of, shape in buffers.values():
        words += (size, *shape)
        item = real_size if of == "real" else 8
        size += math.ceil(math.prod(shape) * item / LINE) * LINE
    return Space(size, array("q", words))
