"""Masks and biases of a whole sequence, seen by some of its queries and some of its keys."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from qkv.bias import PositionBias
from qkv.mask import Causal, Mask, Tile
from qkv.mask.base import Parts, Runs


class Place(NamedTuple):
    """A block of queries and keys in the whole, n queries by m keys."""

    query: int  # the first query
    queries: int
    key: int  # the first key
    keys: int
    n: int
    m: int

    @property
    def ahead(self) -> int:
        """Key position − query position in the whole, less what it is in the block."""
        return self.key - self.query - (self.m - self.n) + (self.keys - self.queries)

    def tile(self, tile: Tile) -> Tile:
        """A tile of the block as a tile of the whole."""
        start, stop = tile.start + self.query, tile.stop + self.query
        return tile._replace(start=start, stop=stop, n=self.n, m=self.m)


class Nowhere(NamedTuple):
    """Said of a block in which no query may see a key."""


def placed(
    mask: Mask | None, place: Place, batch: tuple[int, ...], device: torch.device
) -> Mask | Nowhere | None:
    """The mask of a block; None where all of it may be seen, Nowhere where nothing may."""
    if mask is None:
        return None
    whole = place.tile(Tile(0, place.queries, place.queries, place.keys, batch, device))
    runs = mask.as_runs(whole) if mask.bias() is None else None
    if runs is not None and place.queries:
        start, stop = runs.start, runs.stop
        if int(stop.max()) <= place.key or int(start.min()) >= place.key + place.keys:
            return Nowhere()
        sees_all = int(start.max()) <= place.key and int(stop.min()) >= place.key + place.keys
        if sees_all and runs.stride == 1:
            return None
    if isinstance(mask, Causal) and place.ahead == 0:
        return mask
    return PlacedMask(mask, place)


class PlacedMask(Mask):
    """A mask of the whole, for a block."""

    def __init__(self, mask: Mask, place: Place) -> None:
        self._mask, self._place = mask, place
        self.per_query = mask.per_query

    def _keys(self, tensor: Tensor) -> Tensor:
        alike = tensor.shape[-1] == 1 and self._place.m != 1
        return tensor if alike else tensor.narrow(-1, self._place.key, self._place.keys)

    def allowed(self, tile: Tile) -> Tensor:
        return self._keys(self._mask.allowed(self._place.tile(tile)))

    def as_runs(self, tile: Tile) -> Runs | None:
        runs = self._mask.as_runs(self._place.tile(tile))
        return None if runs is None else _moved(runs, self._place.key)

    def as_parts(self, tile: Tile) -> Parts | None:
        parts = self._mask.as_parts(self._place.tile(tile))
        if parts is None:
            return None
        runs = None if parts.runs is None else _moved(parts.runs, self._place.key)
        return Parts(runs, None if parts.allowed is None else self._keys(parts.allowed))

    def bias(self) -> Tensor | None:
        bias = self._mask.bias()
        if bias is None:
            return None
        alike = bias.shape[-2] == 1 and self._place.n != 1
        rows = bias if alike else bias.narrow(-2, self._place.query, self._place.queries)
        return self._keys(rows)

    def allowed_at(self, distance: Tensor) -> Tensor | None:
        return self._mask.allowed_at(distance + self._place.ahead)

    def visible_keys(self, tile: Tile) -> Tensor | None:
        visible = self._mask.visible_keys(self._place.tile(tile))
        return None if visible is None else self._keys(visible)

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> Mask:
        return PlacedMask(self._mask.narrow(axis, start, stop, batch), self._place)

    def for_shared_heads(self, axis: int) -> Mask | None:
        whole = self._mask.for_shared_heads(axis)
        return None if whole is None else PlacedMask(whole, self._place)

    def tensors(self) -> list[Tensor]:
        return self._mask.tensors()

    def share(self, n: int, m: int) -> float:
        return self._mask.share(self._place.n, self._place.m)

    def __repr__(self) -> str:
        return repr(self._mask)


def _moved(runs: Runs, by: int) -> Runs:
    return Runs(runs.start - by, runs.stop - by, runs.stride)


class PlacedBias(PositionBias):
    """A bias of the whole, for a block."""

    def __init__(self, bias: PositionBias, place: Place) -> None:
        super().__init__()
        self.whole, self._place = bias, place

    def forward(self, query_position: Tensor, key_position: Tensor) -> Tensor:
        place = self._place
        first = place.query + (place.m - place.n) - (place.keys - place.queries)
        found: Tensor = self.whole(query_position + first, key_position + place.key)
        return found

    def along(self, distance: Tensor) -> Tensor | None:
        return self.whole.along(distance + self._place.ahead)

    def needs_grad(self, tile: Tile) -> bool:
        return self.whole.needs_grad(tile)

    def signature(self) -> None:
        return None

    def __repr__(self) -> str:
        return repr(self.whole)
