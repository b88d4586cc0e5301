"""Biases of a whole sequence, as some of its queries and some of its keys see them."""

from __future__ import annotations

from torch import Tensor

from qkv.bias.base import PositionBias
from qkv.mask import Shard, Tile


class ShardBias(PositionBias):
    """A bias of the whole, for a shard."""

    def __init__(self, bias: PositionBias, shard: Shard) -> None:
        super().__init__()
        self.whole, self._shard = bias, shard

    def forward(self, query_position: Tensor, key_position: Tensor) -> Tensor:
        shard = self._shard
        first = shard.query + (shard.m - shard.n) - (shard.keys - shard.queries)
        added: Tensor = self.whole(query_position + first, key_position + shard.key)
        return added

    def along(self, distance: Tensor) -> Tensor | None:
        return self.whole.along(distance + self._shard.ahead)

    def needs_grad(self, tile: Tile) -> bool:
        return self.whole.needs_grad(tile)

    def signature(self) -> None:
        return None

    def __repr__(self) -> str:
        return repr(self.whole)
