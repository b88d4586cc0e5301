"""From tensors to the arrays that the kernels take, and to a share of work for each thread."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qkv.operators.fused.layout import drop_expanded, flat, layout

Array = npt.NDArray[Any]

WIDTH, ROWS = 256, 8  # a tile of keys and a block of queries, as in weights.py
CHUNK = 512  # most queries that a thread takes at a time
SMALL = 2_000_000  # multiply-adds below which a second thread costs more than it saves

_NO_INTERVAL = np.empty((0, 0), np.int64)
_NO_MASK = np.empty((0, 0, 0), np.bool_)
_NO_BIAS = {np.dtype(t): np.empty((0, 0, 0), t) for t in (np.float32, np.float64)}
_NO_ROW_KEY = np.empty((0, 0), np.uint32)


@cache
def kernels(kind: str) -> tuple[Callable[..., None], Callable[..., None]]:
    """The forward and the backward kernel. Numba is imported here, at the first use."""
    from qkv.operators.fused.similarity import build

    return build(kind)


class Operands:
    """The arrays that both kernels take, in `arrays`, and the sizes of the problem."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        parameter: Tensor,
        bias: Tensor | None,
        start: Tensor | None,
        stop: Tensor | None,
        mask: Tensor | None,
        row_key: Tensor | None,
        rate: float,
    ) -> None:
        main = [query, key, value]
        shapes = [tuple(tensor.shape[:-2]) for tensor in main]
        self.batch = shapes[0]
        if not shapes[0] == shapes[1] == shapes[2]:
            # NumPy's: that of torch imports sympy at its first call.
            self.batch = np.broadcast_shapes(*shapes)
        self.n, self.m = query.shape[-2], key.shape[-2]
        self.value_depth = value.shape[-1]
        small = [drop_expanded(tensor, 2) for tensor in main] if any(shapes) else main
        leads = [tuple(tensor.shape[:-2]) for tensor in small] if any(shapes) else shapes
        arrays = [flat(tensor, 2) for tensor in small]
        self.dtype = arrays[0].dtype
        masks: list[Array] = [_NO_INTERVAL, _NO_INTERVAL, _NO_MASK, _NO_BIAS[self.dtype]]
        mask_leads: list[tuple[int, ...]] = [(), (), ()]
        if start is not None and stop is not None:
            start, stop = torch.broadcast_tensors(start, stop)
            mask_leads[0] = tuple(start.shape[:-1])
            masks[:2] = flat(start, 1), flat(stop, 1)
        if mask is not None:
            mask = drop_expanded(mask, 0)
            mask_leads[1] = tuple(mask.shape[:-2])
            masks[2] = flat(mask, 2)
        if bias is not None:
            small_bias = drop_expanded(bias, 0)
            mask_leads[2] = tuple(small_bias.shape[:-2])
            masks[3] = flat(small_bias, 2)
        # Gradients have the shape of what was passed, expanded axes and all.
        bias_lead = () if bias is None else tuple(bias.shape[:-2])
        self.layout = layout(self.batch, *leads, *mask_leads, *shapes, bias_lead)
        self.arrays: tuple[Any, ...] = (
            *arrays,
            parameter.detach().contiguous().numpy(),
            self.layout.index,
            *masks,
            _NO_ROW_KEY if row_key is None else flat(row_key, 1).view(np.uint32),
            np.uint32(round(rate * 2**24)),
            self.dtype.type(1 / (1 - rate) if rate < 1 else 0),
        )
        pairs = self.layout.size * self.n * self.m
        self.threads = torch.get_num_threads()
        if pairs * (query.shape[-1] + self.value_depth + 8) < SMALL:
            self.threads = 1

    def chunk(self) -> int:
        """Queries to take at a time: a chunk for every thread at least, in whole blocks."""
        share = self.layout.size * self.n / self.threads
        return max(ROWS, min(CHUNK, math.ceil(share / ROWS) * ROWS))

    def pieces(self) -> tuple[int, int]:
        """The keys in a piece, a multiple of the tile, and the number of pieces.

        As many as give each thread a few units of work; each costs one layer of the queries'
        gradient, so no more than that.
        """
        groups = max(1, self.layout.group_start.size - 1)
        wanted = math.ceil(4 * self.threads / groups) if self.threads > 1 else 1
        tiles = max(1, math.ceil(self.m / WIDTH))
        piece = math.ceil(tiles / min(wanted, tiles)) * WIDTH
        return piece, max(1, math.ceil(self.m / piece))
