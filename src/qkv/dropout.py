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

    def narrow(self, axis: int, start: int, stop: int) -> Dropout:
        return Dropout(self.rate, self.row_keys.narrow(axis, start, stop - start))

    def apply(self, weights: Tensor, start: int) -> Tensor:
        """Drop from the weights (*batch, rows, m) of the queries from `start` on."""
        rows = self.row_keys[..., start : start + weights.shape[-2]]
        kept = keep(rows, weights.shape[-1], self.rate)
        return torch.where(kept, weights / (1.0 - self.rate), 0.0)


def draw(rate: float, batch: tuple[int, ...], n: int, device: torch.device) -> Dropout:
    """A new dropout, its seed taken from torch's generator."""
    seed = torch.randint(-(2**62), 2**62, (), dtype=torch.int64, device=device)
    rows = torch.arange(math.prod(batch) * n, device=device)
    # SplitMix64: neighbouring rows get unrelated hashes.
    x = seed + (rows + 1) * _ROW_STEP
    x = (x ^ _shift(x, 30, 64)) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    x = (x ^ _shift(x, 27, 64)) * -7723592293110705685  # 0x94D049BB133111EB
    x = x ^ _shift(x, 31, 64)
    return Dropout(rate, x.to(torch.int32).reshape(*batch, n))


def keep(row_keys: Tensor, m: int, rate: float) -> Tensor:
    """Which of the m keys each row keeps, (…, n, m), boolean."""
    keys = torch.arange(m, dtype=torch.int32, device=row_keys.device)
    # The finaliser of MurmurHash3 over row ^ key.
    x = row_keys.unsqueeze(-1) ^ (keys * _KEY_STEP)
    x = (x ^ _shift(x, 16, 32)) * -2048144789  # 0x85EBCA6B
    x = (x ^ _shift(x, 13, 32)) * -1028477387  # 0xC2B2AE35
    x = x ^ _shift(x, 16, 32)
    return _shift(x, 8, 32) >= round(rate * 2**24)


def _shift(x: Tensor, bits: int, width: int) -> Tensor:
    """An unsigned shift right: torch's own drags the sign along."""
    return (x >> bits) & ((1 << (width - bits)) - 1)
