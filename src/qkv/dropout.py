"""Dropout of weights, keyed on position.

Whether the weight of query i for key j is dropped is a hash of (seed, batch entry, i, j). So one
seed drops the same weights whatever the operator, the tile size and the order of computation, and
a backward pass finds them again without having stored them.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

_ROW_STEP = -7046029254386353131  # 0x9E3779B97F4A7C15, the golden ratio in 64 bits, signed
_KEY_STEP = -1640531535  # 0x9E3779B1, the golden ratio in 32 bits, signed


class Dropout(NamedTuple):
    """The share of weights to drop, and a hash for each row that decides which."""

    rate: float
    row_keys: Tensor  # (*batch, n), int32
    first_key: int = 0  # where keys begin in the whole of which they are a shard

    def narrow(self, axis: int, start: int, stop: int) -> Dropout:
        return self._replace(row_keys=self.row_keys.narrow(axis, start, stop - start))

    def apply(self, weights: Tensor, start: int, keys: Tensor | None = None) -> Tensor:
        """Drop from the weights (*batch, rows, m) of the queries from `start` on.

        `keys`, int32 and broadcastable to the weights, says whose weights they are; None: of all
        keys in turn.
        """
        rows = self.row_keys[..., start : start + weights.shape[-2]]
        if keys is None:
            stop = self.first_key + weights.shape[-1]
            keys = torch.arange(self.first_key, stop, dtype=torch.int32, device=weights.device)
        kept = keep(rows, keys, self.rate)
        return torch.where(kept, weights / (1.0 - self.rate), 0.0)


def draw(rate: float, batch: tuple[int, ...], n: int, device: torch.device) -> Dropout:
    """A new dropout, its seed taken from torch's generator."""
    seed = torch.randint(-(2**62), 2**62, (), dtype=torch.int64, device=device)
    return Dropout(rate, row_keys(seed, math.prod(batch) * n).reshape(*batch, n))


# The hashes are custom operators because they live on integer overflow, which torch.compile does
# not honour: it takes products of positions for addresses.


@torch.library.custom_op("qkv::dropout_row_keys", mutates_args=())
def row_keys(seed: Tensor, count: int) -> Tensor:
    """A hash for each of `count` rows, int32: SplitMix64, so that neighbours are unrelated."""
    x = seed + torch.arange(1, count + 1, device=seed.device) * _ROW_STEP
    x = (x ^ _shift(x, 30, 64)) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    x = (x ^ _shift(x, 27, 64)) * -7723592293110705685  # 0x94D049BB133111EB
    x = x ^ _shift(x, 31, 64)
    return x.to(torch.int32)


@row_keys.register_fake
def _(seed: Tensor, count: int) -> Tensor:
    return seed.new_empty(count, dtype=torch.int32)


@torch.library.custom_op("qkv::dropout_keep", mutates_args=())
def keep(row_keys: Tensor, keys: Tensor, rate: float) -> Tensor:
    """Which of its keys (…, n, m) each row (…, n) keeps, boolean: MurmurHash3's finaliser."""
    x = row_keys.unsqueeze(-1) ^ (keys * _KEY_STEP)
    x = (x ^ _shift(x, 16, 32)) * -2048144789  # 0x85EBCA6B
    x = (x ^ _shift(x, 13, 32)) * -1028477387  # 0xC2B2AE35
    x = x ^ _shift(x, 16, 32)
    return _shift(x, 8, 32) >= round(rate * 2**24)


@keep.register_fake
def _(row_keys: Tensor, keys: Tensor, rate: float) -> Tensor:
    return torch.empty_like(row_keys.unsqueeze(-1) ^ keys, dtype=torch.bool)


def _shift(x: Tensor, bits: int, width: int) -> Tensor:
    """An unsigned shift right: torch's own drags the sign along."""
    return (x >> bits) & ((1 << (width - bits)) - 1)
