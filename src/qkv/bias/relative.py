"""Biases of the distance between positions alone: ALiBi's slopes, and learned tables."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch
from torch import Tensor, nn

from qkv.bias.base import PositionBias
from qkv.broadcast import broadcasts_to
from qkv.mask import Tile

#: Distances -> entries of a table, both whole numbers.
Bucketing: TypeAlias = Callable[[Tensor], Tensor]


class RelativeBias(PositionBias):
    """A function of key position − query position; subclasses write `along`.

    It is computed once for each distance, and tiles are made of what that gave.
    """

    def along(self, distance: Tensor) -> Tensor:
        """What is added at each distance, (…heads, *distance.shape)."""
        raise TypeError(f"{type(self).__name__} must define along(distance)")

    def forward(self, query_position: Tensor, key_position: Tensor) -> Tensor:
        return self.along(key_position - query_position)

    def scores(self, tile: Tile) -> Tensor:
        if tile.start == tile.stop:  # no query, and so no line
            return self.along(tile.distances())
        last = tile.stop - 1 + tile.m - tile.n  # where the last query stands
        line = self.along(torch.arange(-last, tile.n - tile.start, device=tile.device))
        # A row is the one below it, moved on by one: all are runs of one line.
        return line.unfold(-1, tile.m, 1).flip(-2)


class Alibi(RelativeBias):
    """``−slope · |i − j|``, with a slope for each head: "Attention with Linear Biases".

    `slopes` is a number for each head, (heads,), or for each leading axis, (…, heads); an
    ``nn.Parameter`` is learned. Those of the paper are :func:`alibi_slopes`.
    """

    slopes: Tensor

    def __init__(self, slopes: Tensor | Sequence[float]) -> None:
        super().__init__()
        _hold(self, "slopes", slopes)

    def along(self, distance: Tensor) -> Tensor:
        slopes = self.slopes.reshape(*self.slopes.shape, *(1,) * distance.ndim)
        return -slopes * distance.abs().to(slopes.dtype)

    def check(self, batch: tuple[int, ...], n: int, m: int) -> None:
        _check_heads("bias Alibi has slopes", tuple(self.slopes.shape), batch)

    def extra_repr(self) -> str:
        return f"slopes {tuple(self.slopes.shape)}"


class Relative(RelativeBias):
    """table[head, bucket(j − i)]: a number for each head and distance, usually learned.

    `table` is (…heads, buckets). Without a `bucket`, entry r + reach is that of the distance r,
    with reach = (buckets − 1) / 2, and distances beyond it count as ±reach. With one, such as
    :class:`T5Buckets`, it says which entry a distance has.
    """

    table: Tensor

    def __init__(self, table: Tensor | Sequence[Sequence[float]], bucket: Bucketing | None = None):
        super().__init__()
        _hold(self, "table", table)
        if self.table.ndim == 0 or self.table.shape[-1] == 0:
            raise ValueError(
                f"table must have shape (..., heads, buckets); got {tuple(self.table.shape)}"
            )
        if bucket is None and self.table.shape[-1] % 2 == 0:
            raise ValueError(
                "table must have an odd number of entries for each head, for distances from "
                f"-reach to reach; got {self.table.shape[-1]}"
            )
        if isinstance(bucket, T5Buckets) and bucket.count != self.table.shape[-1]:
            raise ValueError(
                f"table must have {bucket.count} entries for each head, one for each bucket; "
                f"got {self.table.shape[-1]}"
            )
        self.bucket = bucket

    def along(self, distance: Tensor) -> Tensor:
        if self.bucket is not None:
            return self.table[..., self.bucket(distance)]
        reach = self.table.shape[-1] // 2
        return self.table[..., distance.clamp(-reach, reach) + reach]

    def check(self, batch: tuple[int, ...], n: int, m: int) -> None:
        _check_heads("bias Relative has a table", tuple(self.table.shape[:-1]), batch)

    def signature(self) -> Hashable | None:
        known = super().signature()
        if known is None or not (self.bucket is None or isinstance(self.bucket, T5Buckets)):
            return None
        return known, self.bucket

    def extra_repr(self) -> str:
        bucket = "" if self.bucket is None else f", {self.bucket!r}"
        return f"table {tuple(self.table.shape)}{bucket}"


@dataclass(frozen=True)
class T5Buckets:
    """T5's buckets: near distances have their own, far ones share wider and wider ones.

    From `most` on all distances share the last. Where `both_ways`, half of the buckets is for
    keys after the query; else those count as distance 0. T5's embedding of shape (count, heads)
    is the table ``embedding.weight.mT``.
    """

    count: int = 32
    most: int = 128
    both_ways: bool = True

    def __call__(self, distance: Tensor) -> Tensor:
        count = self.count // 2 if self.both_ways else self.count
        after = (distance > 0) * count if self.both_ways else torch.zeros_like(distance)
        far = distance.abs() if self.both_ways else (-distance).clamp(min=0)
        exact = count // 2
        # In float32, as T5 has it, so that its tables mean the same here.
        step = torch.log(far.clamp(min=1).float() / exact) / math.log(self.most / exact)
        wide = exact + (step * (count - exact)).to(torch.int64)
        return after + torch.where(far < exact, far, wide.clamp(max=count - 1))


def alibi_slopes(heads: int) -> Tensor:
    """The slopes of the paper: 2^(−8/h), 2^(−16/h), … for h heads, a power of 2.

    For another number of heads come first those of the power of 2 below it, then every other one
    of the next.
    """
    if heads < 1:
        raise ValueError(f"heads must be at least 1; got {heads}")
    whole = 2 ** (heads.bit_length() - 1)
    slopes = [2 ** (-8 * (h + 1) / whole) for h in range(whole)]
    slopes += [2 ** (-4 * (h + 1) / whole) for h in range(0, 2 * (heads - whole), 2)]
    return torch.tensor(slopes, dtype=torch.float64)


def _hold(module: nn.Module, name: str, numbers: Tensor | Sequence[object]) -> None:
    """Keep numbers: a parameter as such, others as a buffer, which no checkpoint need hold."""
    if isinstance(numbers, nn.Parameter):
        module.register_parameter(name, numbers)
        return
    held = torch.as_tensor(numbers)
    if not isinstance(numbers, Tensor):
        held = torch.as_tensor(numbers, dtype=torch.float64)  # exact in every type
    if not held.is_floating_point():
        raise TypeError(f"{name} must be floating point; got {held.dtype}")
    module.register_buffer(name, held, persistent=False)


def _check_heads(what: str, own: tuple[int, ...], batch: tuple[int, ...]) -> None:
    if not broadcasts_to(own, batch):
        raise ValueError(f"{what} for heads {own}, which must match the leading axes {batch}")
