"""What a bias is: numbers added to scores, by position, tile by tile."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

import torch
from torch import Tensor, nn

from qkv.broadcast import batch_entries, broadcasts_to
from qkv.mask import Mask, Parts, Tile

#: (query position, key position) -> what is added, see :class:`FromFunction`.
PositionFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]


class PositionBias(nn.Module, Mask):
    """A function of query and key position that is added to the scores; subclasses write `forward`.

    It is a mask that hides nothing, so it combines with masks by ``&``: ``Causal() & Alibi(…)``.
    """

    per_query = False
    adds_by_position = True

    def forward(self, query_position: Tensor, key_position: Tensor) -> Tensor:
        """What is added, of the positions' common shape, with axes before it for heads."""
        raise TypeError(f"{type(self).__name__} must define forward(query_position, key_position)")

    def scores(self, tile: Tile) -> Tensor:
        """What is added to the scores of a tile, broadcastable to (*batch, stop − start, m)."""
        scores = self(tile.positions().unsqueeze(-1), torch.arange(tile.m, device=tile.device))
        if not isinstance(scores, Tensor):
            raise TypeError(f"bias must return a tensor; got {type(scores).__name__}")
        wanted = (*tile.batch, tile.stop - tile.start, tile.m)
        if not broadcasts_to(scores.shape, wanted):
            raise ValueError(
                f"bias must return a tensor that broadcasts to (..., n, m) = {wanted}; "
                f"got {tuple(scores.shape)}"
            )
        return scores

    def along(self, distance: Tensor) -> Tensor | None:
        """What is added at each key position − query position; None where more counts than that."""
        return None

    def needs_grad(self, tile: Tile) -> bool:
        """Whether something that it holds wants a gradient."""
        return torch.is_grad_enabled() and any(x.requires_grad for x in self.tensors())

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> PositionBias:
        return _Narrowed(self, axis, start, stop, batch)

    def allowed(self, tile: Tile) -> Tensor:
        return torch.ones(1, tile.m, dtype=torch.bool, device=tile.device)

    def as_parts(self, tile: Tile) -> Parts:
        return Parts(None, None)

    def without_positions(self) -> tuple[Mask | None, tuple[Mask, ...]]:
        return None, (self,)

    def tensors(self) -> list[Tensor]:
        return [*self.parameters(), *self.buffers()]

    def signature(self) -> Hashable | None:
        if not type(self).__module__.startswith("qkv.bias."):
            return None  # a user's class may depend on anything
        held = self.tensors()
        return type(self), *((x.shape, x.dtype, x.device, x.requires_grad) for x in held)


class FromFunction(PositionBias):
    """Any function (query position, key position) -> added scores.

    It is called with whole numbers, (rows, 1) and (keys,), and gives (rows, keys), or
    (…heads, rows, keys). Learned tensors that it closes over get their gradients.
    """

    def __init__(self, function: PositionFunction) -> None:
        super().__init__()
        self.function = function

    def forward(self, query_position: Tensor, key_position: Tensor) -> Tensor:
        return self.function(query_position, key_position)

    def needs_grad(self, tile: Tile) -> bool:
        if not torch.is_grad_enabled() or tile.n * tile.m == 0:
            return False
        # One pair tells whether the function closes over something that is learned.
        last = torch.full((1, 1), tile.m - 1, device=tile.device)
        sample = self.function(last, last[0])
        return isinstance(sample, Tensor) and sample.requires_grad

    def signature(self) -> None:
        return None

    def extra_repr(self) -> str:
        return getattr(self.function, "__name__", type(self.function).__name__)


class Sum(PositionBias):
    """Several biases, all of which are added."""

    def __init__(self, biases: Sequence[PositionBias]) -> None:
        super().__init__()
        self.biases = nn.ModuleList(biases)

    def _each(self) -> list[PositionBias]:
        return list(self.biases)  # type: ignore[arg-type]

    def forward(self, query_position: Tensor, key_position: Tensor) -> Tensor:
        return _sum([bias(query_position, key_position) for bias in self._each()])

    def scores(self, tile: Tile) -> Tensor:
        return _sum([bias.scores(tile) for bias in self._each()])

    def along(self, distance: Tensor) -> Tensor | None:
        lines = [bias.along(distance) for bias in self._each()]
        known = [each for each in lines if each is not None]
        return _sum(known) if len(known) == len(lines) else None

    def needs_grad(self, tile: Tile) -> bool:
        return any(bias.needs_grad(tile) for bias in self._each())

    def check(self, batch: tuple[int, ...], n: int, m: int) -> None:
        for bias in self._each():
            bias.check(batch, n, m)

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> PositionBias:
        return Sum([bias.narrow(axis, start, stop, batch) for bias in self._each()])

    def signature(self) -> Hashable | None:
        each = tuple(bias.signature() for bias in self._each())
        return None if None in each else (Sum, *each)

    def __repr__(self) -> str:
        return " + ".join(map(repr, self._each()))


class _Narrowed(PositionBias):
    """Some entries of a leading axis of another bias."""

    def __init__(
        self, base: PositionBias, axis: int, start: int, stop: int, batch: tuple[int, ...]
    ) -> None:
        super().__init__()
        self.base, self.axis, self.start, self.stop, self.batch = base, axis, start, stop, batch

    def _part(self, added: Tensor, trailing: int) -> Tensor:
        return batch_entries(added, self.axis, self.start, self.stop, self.batch, trailing)

    def scores(self, tile: Tile) -> Tensor:
        return self._part(self.base.scores(tile._replace(batch=self.batch)), 2)

    def along(self, distance: Tensor) -> Tensor | None:
        added = self.base.along(distance)
        return None if added is None else self._part(added, distance.ndim)

    def needs_grad(self, tile: Tile) -> bool:
        return self.base.needs_grad(tile)

    def signature(self) -> None:
        return None

    def __repr__(self) -> str:
        return repr(self.base)


BiasLike: TypeAlias = PositionBias | PositionFunction


def as_bias(bias: BiasLike) -> PositionBias:
    """The bias that `bias` stands for: a PositionBias or a function of two positions."""
    if isinstance(bias, PositionBias):
        return bias
    if isinstance(bias, (Tensor, Mask)) or not callable(bias):
        hint = "; give that as mask=" if isinstance(bias, (Tensor, Mask)) else ""
        raise TypeError(
            "bias must be a qkv.bias object or a function (query position, key position) -> "
            f"added scores; got {type(bias).__name__}{hint}"
        )
    return FromFunction(bias)


def _sum(parts: Sequence[Tensor]) -> Tensor:
    total = parts[0]
    for each in parts[1:]:
        total = total + each
    return total
