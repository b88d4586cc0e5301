"""From tensors to what the kernels take, and to a share of work for each thread."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

from qkv.operators.fused.arguments import Operand
from qkv.operators.fused.layout import drop_expanded, layout
from qkv.operators.fused.space import ROWS, WIDTH

CHUNK = 512  # most queries that a thread takes at a time
SMALL = 2_000_000  # multiply-adds below which a second thread costs more than it saves


class Operands:
    """The inputs that both kernels take, in `inputs`, and the sizes of the problem."""

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
        self.dtype = query.dtype
        small = [drop_expanded(tensor, 2) for tensor in main] if any(shapes) else main
        leads = [tuple(tensor.shape[:-2]) for tensor in small] if any(shapes) else shapes
        mask_leads: list[tuple[int, ...]] = [(), (), ()]
        if start is not None and stop is not None:
            start, stop = torch.broadcast_tensors(start, stop)
            mask_leads[0] = tuple(start.shape[:-1])
        small_mask = None if mask is None else drop_expanded(mask, 0)
        if small_mask is not None:
            mask_leads[1] = tuple(small_mask.shape[:-2])
        small_bias = None if bias is None else drop_expanded(bias, 0)
        if small_bias is not None:
            mask_leads[2] = tuple(small_bias.shape[:-2])
        # Gradients have the shape of what was passed, expanded axes and all.
        bias_lead = () if bias is None else tuple(bias.shape[:-2])
        self.layout = layout(self.batch, *leads, *mask_leads, *shapes, bias_lead)
        tensors = (
            *small,
            parameter,
            self.layout.index,
            start,
            stop,
            small_mask,
            small_bias,
            row_key,
        )
        self.inputs: tuple[Operand, ...] = (
            # The kernels see memory only, not a sign that is kept beside it.
            *(None if x is None else x.resolve_neg().contiguous() for x in tensors),
            round(rate * 2**24),
            1 / (1 - rate) if rate < 1 else 0.0,
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
        groups = max(1, len(self.layout.group_start) - 1)
        wanted = math.ceil(4 * self.threads / groups) if self.threads > 1 else 1
        tiles = max(1, math.ceil(self.m / WIDTH))
        piece = math.ceil(tiles / min(wanted, tiles)) * WIDTH
        return piece, max(1, math.ceil(self.m / piece))
