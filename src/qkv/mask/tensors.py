"""Tensors as masks: boolean ones allow, floating ones are added to the scores."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from qkv.broadcast import batch_entries, broadcasts_to, query_rows
from qkv.mask.base import Mask, Parts, Tile


class Allowed(Mask):
    """A boolean tensor that broadcasts to (…, n, m); True = may attend."""

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = _at_least_2d(tensor)
        self.per_query = self.tensor.shape[-2] != 1

    def check(self, batch: tuple[int, ...], n: int, m: int) -> None:
        _check_broadcast(self.tensor, (*batch, n, m))

    def allowed(self, tile: Tile) -> Tensor:
        return query_rows(self.tensor, tile.start, tile.stop)

    def as_parts(self, tile: Tile) -> Parts:
        return Parts(None, self.allowed(tile))

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> Mask:
        return Allowed(batch_entries(self.tensor, axis, start, stop, batch))

    def for_shared_heads(self, axis: int) -> Mask | None:
        if self.tensor.ndim < 3:
            return self
        return Allowed(self.tensor.unsqueeze(-3)) if self.tensor.shape[-3] == 1 else None

    def tensors(self) -> list[Tensor]:
        return [self.tensor]

    def signature(self) -> Hashable:
        return Allowed, *_facts(self.tensor)

    def __repr__(self) -> str:
        return f"boolean tensor {tuple(self.tensor.shape)}"


class Bias(Mask):
    """A floating tensor that broadcasts to (…, n, m), added to the scores; −inf = may not attend.

    Where weights are proportional to a kernel, it multiplies the kernel by exp(bias).
    """

    def __init__(self, tensor: Tensor) -> None:
        self.tensor = _at_least_2d(tensor)
        self.per_query = self.tensor.shape[-2] != 1

    def check(self, batch: tuple[int, ...], n: int, m: int) -> None:
        _check_broadcast(self.tensor, (*batch, n, m))

    def allowed(self, tile: Tile) -> Tensor:
        return query_rows(self.tensor, tile.start, tile.stop) != -torch.inf

    def as_parts(self, tile: Tile) -> Parts:
        return Parts(None, None)  # it limits through what it adds

    def bias(self) -> Tensor | None:
        return self.tensor

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> Mask:
        return Bias(batch_entries(self.tensor, axis, start, stop, batch))

    def for_shared_heads(self, axis: int) -> Mask | None:
        if self.tensor.ndim < 3:
            return self
        return Bias(self.tensor.unsqueeze(-3)) if self.tensor.shape[-3] == 1 else None

    def tensors(self) -> list[Tensor]:
        return [self.tensor]

    def signature(self) -> Hashable:
        return Bias, *_facts(self.tensor)

    def __repr__(self) -> str:
        return f"floating tensor {tuple(self.tensor.shape)}"


def _facts(tensor: Tensor) -> tuple[Hashable, ...]:
    return tensor.shape, tensor.dtype, tensor.device, tensor.requires_grad


def _at_least_2d(tensor: Tensor) -> Tensor:
    return tensor if tensor.ndim > 1 else tensor.reshape(1, -1)


def _check_broadcast(tensor: Tensor, shape: tuple[int, ...]) -> None:
    if not broadcasts_to(tensor.shape, shape):
        raise ValueError(f"mask must broadcast to (..., n, m) = {shape}; got {tuple(tensor.shape)}")
