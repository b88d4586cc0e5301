"""Masks of a whole sequence, as some of its queries and some of its keys see them."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from qkv.broadcast import query_rows
from qkv.mask.base import Mask, Parts, Runs, Tile
from qkv.mask.positions import Causal


class Shard(NamedTuple):
    """Some neighbouring queries and keys of a whole of n queries and m keys."""

    query: int  # the first query
    queries: int
    key: int  # the first key
    keys: int
    n: int
    m: int

    @property
    def ahead(self) -> int:
        """Key position − query position in the whole, less what it is in the shard."""
        return self.key - self.query - (self.m - self.n) + (self.keys - self.queries)

    def tile(self, tile: Tile) -> Tile:
        """A tile of the shard as a tile of the whole."""
        start, stop = tile.start + self.query, tile.stop + self.query
        return tile._replace(start=start, stop=stop, n=self.n, m=self.m)


class NothingVisible(NamedTuple):
    """Said of a shard in which no query may see a key."""


def mask_of_shard(
    mask: Mask | None, shard: Shard, batch: tuple[int, ...], device: torch.device
) -> Mask | NothingVisible | None:
    """The mask of a shard; None where all of it may be seen, NothingVisible where nothing may."""
    if mask is None:
        return None
    whole = shard.tile(Tile(0, shard.queries, shard.queries, shard.keys, batch, device))
    runs = mask.as_runs(whole) if mask.bias() is None else None
    if runs is not None and shard.queries:
        start, stop = runs.start, runs.stop
        if int(stop.max()) <= shard.key or int(start.min()) >= shard.key + shard.keys:
            return NothingVisible()
        sees_all = int(start.max()) <= shard.key and int(stop.min()) >= shard.key + shard.keys
        if sees_all and runs.stride == 1:
            return None
    if isinstance(mask, Causal) and shard.ahead == 0:
        return mask
    return ShardMask(mask, shard)


class ShardMask(Mask):
    """A mask of the whole, for a shard."""

    def __init__(self, mask: Mask, shard: Shard) -> None:
        self._mask, self._shard = mask, shard
        self.per_query = mask.per_query

    def _keys(self, tensor: Tensor) -> Tensor:
        alike = tensor.shape[-1] == 1 and self._shard.m != 1
        return tensor if alike else tensor.narrow(-1, self._shard.key, self._shard.keys)

    def allowed(self, tile: Tile) -> Tensor:
        return self._keys(self._mask.allowed(self._shard.tile(tile)))

    def as_runs(self, tile: Tile) -> Runs | None:
        runs = self._mask.as_runs(self._shard.tile(tile))
        return None if runs is None else _moved(runs, self._shard.key)

    def as_parts(self, tile: Tile) -> Parts | None:
        parts = self._mask.as_parts(self._shard.tile(tile))
        if parts is None:
            return None
        runs = None if parts.runs is None else _moved(parts.runs, self._shard.key)
        return Parts(runs, None if parts.allowed is None else self._keys(parts.allowed))

    def bias(self) -> Tensor | None:
        bias = self._mask.bias()
        if bias is None:
            return None
        first = self._shard.query
        return self._keys(query_rows(bias, first, first + self._shard.queries))

    def allowed_at(self, distance: Tensor) -> Tensor | None:
        return self._mask.allowed_at(distance + self._shard.ahead)

    def visible_keys(self, tile: Tile) -> Tensor | None:
        visible = self._mask.visible_keys(self._shard.tile(tile))
        return None if visible is None else self._keys(visible)

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> Mask:
        return ShardMask(self._mask.narrow(axis, start, stop, batch), self._shard)

    def for_shared_heads(self, axis: int) -> Mask | None:
        whole = self._mask.for_shared_heads(axis)
        return None if whole is None else ShardMask(whole, self._shard)

    def tensors(self) -> list[Tensor]:
        return self._mask.tensors()

    def share(self, n: int, m: int) -> float:
        return self._mask.share(self._shard.n, self._shard.m)

    def __repr__(self) -> str:
        return repr(self._mask)


def _moved(runs: Runs, by: int) -> Runs:
    return Runs(runs.start - by, runs.stop - by, runs.stride)
