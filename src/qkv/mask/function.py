"""Any function of positions as a mask, asked a block at a time."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch
from torch import Tensor

from qkv.mask.base import Mask, Tile

#: (query position, key position) -> whether the one may attend to the other.
Rule = Callable[..., Tensor]


class Function(Mask):
    """Pairs that a function (query position, key position) -> bool allows.

    >>> import torch, qkv
    >>> x = torch.randn(7, 4)
    >>> def near_or_first(query, key):
    ...     return ((query - key).abs() <= 1) | (key == 0)
    >>> qkv.attend(x, x, x, mask=near_or_first).shape
    torch.Size([7, 4])

    The function is given whole-number tensors that broadcast against each other, for some queries
    at a time: there is never an entry for all pairs at once. With as many further arguments as
    there are leading axes, as FlexAttention's (batch, head, query, key), it is given the places
    there first. Positions are aligned to the end, see :mod:`qkv.mask`.
    """

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.arguments = _arguments(rule)
        if self.arguments < 2:
            raise TypeError(
                "a mask function takes (query position, key position), after a place on each "
                f"leading axis if it likes; {_name(rule)} takes {self.arguments}"
            )
        self._first: dict[int, int] = {}  # of leading axes that were narrowed

    def check(self, batch: tuple[int, ...], n: int, m: int) -> None:
        if self.arguments not in (2, 2 + len(batch)):
            raise ValueError(
                f"mask function {_name(self.rule)} takes {self.arguments} arguments; for leading "
                f"axes {batch} it must take 2 or {2 + len(batch)}"
            )

    def allowed(self, tile: Tile) -> Tensor:
        query = tile.positions().unsqueeze(-1)  # (rows, 1)
        key = torch.arange(tile.m, device=tile.device).unsqueeze(0)  # (1, m)
        places = []
        if self.arguments > 2:
            for axis, size in enumerate(tile.batch):
                place = torch.arange(size, device=tile.device) + self._first.get(axis, 0)
                places.append(place.reshape(-1, *[1] * (len(tile.batch) - axis + 1)))
        allowed = torch.as_tensor(self.rule(*places, query, key), device=tile.device)
        if allowed.dtype != torch.bool:
            raise TypeError(
                f"mask function {_name(self.rule)} must give True or False; got {allowed.dtype}"
            )
        return allowed.expand(*allowed.shape[:-2], tile.stop - tile.start, tile.m)

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> Mask:
        if self.arguments == 2:
            return self
        made = Function(self.rule)
        made._first = {**self._first, axis: self._first.get(axis, 0) + start}
        return made

    def for_shared_heads(self, axis: int) -> Mask | None:
        return self if self.arguments == 2 else None

    def __repr__(self) -> str:
        return f"Function({_name(self.rule)})"


def _arguments(rule: Rule) -> int:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(rule).parameters.values()
    return sum(each.kind in kinds and each.default is each.empty for each in parameters)


def _name(rule: Rule) -> str:
    return getattr(rule, "__name__", type(rule).__name__)
