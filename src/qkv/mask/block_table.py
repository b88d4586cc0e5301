"""Block-sparse attention: a small table says which blocks of keys each block of queries sees."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qkv.mask.base import Mask, Runs, Tile
from qkv.mask.positions import whole_number
from qkv.tracing import can_read_values


class BlockTable(Mask):
    """Keys of the blocks that a table allows to the query's own block of `size` positions.

    >>> import torch, qkv
    >>> words = torch.zeros(6, 1)
    >>> table = [[True, False], [True, True]]  # the second block sees the first, too
    >>> qkv.weights(words, words, mask=qkv.mask.BlockTable(table, size=3))[[0, 5]].round(decimals=2)
    tensor([[0.3300, 0.3300, 0.3300, 0.0000, 0.0000, 0.0000],
            [0.1700, 0.1700, 0.1700, 0.1700, 0.1700, 0.1700]])

    What it allows is spread out for a tile of queries at a time, never for all pairs. Where the
    blocks of each row stand side by side, only their keys are visited.

    Args:
        table: (blocks, blocks), row by row what a block of queries may attend to.
        size: positions in a block; the last block may be shorter.
    """

    def __init__(
        self, table: Sequence[Sequence[bool]] | npt.NDArray[np.bool_] | Tensor, size: int
    ) -> None:
        self.size = whole_number("size", size, least=1)
        self.table = torch.as_tensor(table)
        if self.table.dtype != torch.bool:
            raise TypeError(f"table must be boolean; got {self.table.dtype}")
        if self.table.ndim != 2 or self.table.shape[0] != self.table.shape[1]:
            raise ValueError(
                f"table must have as many rows as columns, one for each block; "
                f"got shape {tuple(self.table.shape)}"
            )
        self._share, self._runs = 1.0, None
        if can_read_values(self.table) and self.table.numel():
            self._share = self.table.double().mean().item()
            self._runs = _side_by_side(self.table)

    def check(self, batch: tuple[int, ...], n: int, m: int) -> None:
        blocks = -(-m // self.size)
        if len(self.table) != blocks:
            raise ValueError(
                f"mask BlockTable must have {blocks} rows and columns for {m} keys in blocks of "
                f"{self.size}; got {len(self.table)}"
            )

    def allowed(self, tile: Tile) -> Tensor:
        own = tile.positions() // self.size  # below 0 where there are more queries than keys
        keys = torch.arange(tile.m, device=tile.device) // self.size
        rows = self.table.to(tile.device)[own.clamp(min=0)]
        return rows[:, keys] & (own >= 0).unsqueeze(-1)

    def as_runs(self, tile: Tile) -> Runs | None:
        if self._runs is None:
            return None
        own = tile.positions() // self.size
        start, stop = (x.to(tile.device)[own.clamp(min=0)] * self.size for x in self._runs)
        return Runs(start, torch.where(own >= 0, stop, start))

    def for_shared_heads(self, axis: int) -> Mask:
        return self

    def tensors(self) -> list[Tensor]:
        return [self.table]

    def share(self, n: int, m: int) -> float:
        return self._share

    def signature(self) -> Hashable:
        # Estimates depend on how much is kept, within a factor.
        kept = round(np.log2(max(self._share, 1e-9)))
        return BlockTable, self.table.shape, self.table.device, self.size, self._runs is None, kept

    def __repr__(self) -> str:
        return f"BlockTable({self._share:.2%} of {tuple(self.table.shape)}, {self.size})"


def _side_by_side(table: Tensor) -> tuple[Tensor, Tensor] | None:
    """The first block that each row allows, and the one behind the last; None where a row has gaps
    between them."""
    counts = table.sum(-1)
    start = table.int().argmax(-1)
    stop = torch.where(counts > 0, table.shape[-1] - table.flip(-1).int().argmax(-1), start)
    return (start, stop) if bool((stop - start == counts).all()) else None
