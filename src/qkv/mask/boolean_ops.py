"""Two masks in one, and anything that stands for a mask."""

from __future__ import annotations

from collections.abc import Hashable

import numpy as np
import torch
from torch import Tensor

from qkv.mask.base import Mask, MaskLike, Parts, Runs, Tile
from qkv.mask.function import Function
from qkv.mask.tensors import Allowed, Bias


class _Pair(Mask):
    """Two masks in one."""

    sign = ""

    def __init__(self, left: Mask, right: Mask) -> None:
        self.left, self.right = left, right
        self.per_query = left.per_query or right.per_query
        self.needs_scores = left.needs_scores or right.needs_scores
        self.adds_by_position = left.adds_by_position or right.adds_by_position

    def check(self, batch: tuple[int, ...], n: int, m: int) -> None:
        self.left.check(batch, n, m)
        self.right.check(batch, n, m)

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> Mask:
        return type(self)(
            self.left.narrow(axis, start, stop, batch), self.right.narrow(axis, start, stop, batch)
        )

    def for_shared_heads(self, axis: int) -> Mask | None:
        left, right = self.left.for_shared_heads(axis), self.right.for_shared_heads(axis)
        return None if left is None or right is None else type(self)(left, right)

    def tensors(self) -> list[Tensor]:
        return [*self.left.tensors(), *self.right.tensors()]

    def signature(self) -> Hashable | None:
        left, right = self.left.signature(), self.right.signature()
        return None if left is None or right is None else (type(self), left, right)

    def __repr__(self) -> str:
        return f"({self.left!r} {self.sign} {self.right!r})"


class And(_Pair):
    """Keys that both masks allow; what is chosen by score is chosen among those of the other."""

    sign = "&"

    def allowed(self, tile: Tile) -> Tensor:
        return self.left.allowed(tile) & self.right.allowed(tile)

    def allowed_by_score(
        self, universe: Tensor | None, tile: Tile, log_scores: Tensor
    ) -> Tensor | None:
        first, last = self.left, self.right
        if first.needs_scores:
            first, last = last, first
        return last.allowed_by_score(
            first.allowed_by_score(universe, tile, log_scores), tile, log_scores
        )

    def as_runs(self, tile: Tile) -> Runs | None:
        left, right = self.left.as_runs(tile), self.right.as_runs(tile)
        return None if left is None or right is None else left.intersect(right)

    def as_parts(self, tile: Tile) -> Parts | None:
        left, right = self.left.as_parts(tile), self.right.as_parts(tile)
        if left is None or right is None:
            return None
        runs = left.runs or right.runs
        if left.runs is not None and right.runs is not None:
            runs = left.runs.intersect(right.runs)
            if runs is None:
                return None
        if left.allowed is None or right.allowed is None:
            return Parts(runs, right.allowed if left.allowed is None else left.allowed)
        return Parts(runs, left.allowed & right.allowed)

    def as_topk(self) -> tuple[int, Mask | None] | None:
        for ranking, other in ((self.left, self.right), (self.right, self.left)):
            best = ranking.as_topk()
            if best is not None and not other.needs_scores:
                k, rest = best
                return k, other if rest is None else And(rest, other)
        return None

    def allowed_at(self, distance: Tensor) -> Tensor | None:
        left, right = self.left.allowed_at(distance), self.right.allowed_at(distance)
        return None if left is None or right is None else left & right

    def without_positions(self) -> tuple[Mask | None, tuple[Mask, ...]]:
        if not self.adds_by_position:
            return self, ()
        left, of_left = self.left.without_positions()
        right, of_right = self.right.without_positions()
        both = And(left, right) if left is not None and right is not None else left or right
        return both, (*of_left, *of_right)

    def share(self, n: int, m: int) -> float:
        return min(self.left.share(n, m), self.right.share(n, m))

    def pieces(self) -> int:
        return max(self.left.pieces(), self.right.pieces())

    def bias(self) -> Tensor | None:
        left, right = self.left.bias(), self.right.bias()
        if left is None or right is None:
            return right if left is None else left
        return left + right

    def visible_keys(self, tile: Tile) -> Tensor | None:
        left, right = self.left.visible_keys(tile), self.right.visible_keys(tile)
        if left is None or right is None:
            return right if left is None else left
        return left & right


class Or(_Pair):
    """Keys that either mask allows."""

    sign = "|"

    def __init__(self, left: Mask, right: Mask) -> None:
        super().__init__(left, right)
        for side in (left, right):
            if side.adds_by_position or any(x.is_floating_point() for x in side.tensors()):
                what = "bias" if side.adds_by_position else "floating mask"
                raise TypeError(f"a {what} is added to the scores and combines with & only")

    def allowed(self, tile: Tile) -> Tensor:
        return self.left.allowed(tile) | self.right.allowed(tile)

    def allowed_by_score(
        self, universe: Tensor | None, tile: Tile, log_scores: Tensor
    ) -> Tensor | None:
        left = self.left.allowed_by_score(universe, tile, log_scores)
        right = self.right.allowed_by_score(universe, tile, log_scores)
        return None if left is None or right is None else left | right


def intersection(*masks: Mask | None) -> Mask | None:
    """What all of the masks allow; None allows everything."""
    whole: Mask | None = None
    for mask in masks:
        if mask is not None:
            whole = mask if whole is None else And(whole, mask)
    return whole


def as_mask(mask: MaskLike) -> Mask:
    """The mask that `mask` stands for: a Mask, a tensor or array, or a function of positions."""
    if isinstance(mask, Mask):
        return mask
    if isinstance(mask, np.ndarray):
        mask = torch.from_numpy(mask)
    if not isinstance(mask, Tensor):
        if callable(mask) and not isinstance(mask, type):
            return Function(mask)
        got = f"the class {mask.__name__}" if isinstance(mask, type) else type(mask).__name__
        raise TypeError(
            f"mask must be a qkv.mask object, a boolean or floating tensor or a function of "
            f"positions; got {got}"
        )
    if mask.dtype == torch.bool:
        return Allowed(mask)
    if mask.is_floating_point():
        return Bias(mask)
    raise TypeError(
        f"mask must be boolean (True = may attend) or floating (added to the scores); "
        f"got {mask.dtype}"
    )
