"""Two similarities in one: scores added, kernels added or multiplied."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Literal

import torch
from torch import Tensor

from qkv.similarity.base import (
    DotForm,
    FromCallable,
    FusedForm,
    PreparedSize,
    Similarity,
    widen,
)
from qkv.similarity.dot import fused_combination


class _Parts(Similarity):
    """Two similarities of the same tokens, whose prepared tokens stand side by side."""

    sign = ""
    is_combined = True

    def __init__(self, left: Similarity, right: Similarity) -> None:
        super().__init__()
        self.left, self.right = left, right
        self.weighting = left.weighting
        self.family = left.family if left.family == right.family else "any"
        self.depends_on_spread = left.depends_on_spread or right.depends_on_spread
        self.per_head = left.per_head or right.per_head

    def check(self, query: Tensor, key: Tensor) -> None:
        self.left.check(query, key)
        self.right.check(query, key)

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        if not (_takes_tokens(self.left) or _takes_tokens(self.right)):
            return _beside(self.left.prepare(query, key), self.right.prepare(query, key))
        # One copy of the tokens themselves serves all that need no more than that.
        prepared = widen(query), widen(key)
        for part in (self.left, self.right):
            if not _takes_tokens(part):
                prepared = _beside(prepared, part.prepare(query, key))
        return prepared

    def combine(self, left: Tensor, right: Tensor) -> Tensor:
        """The scores of both as one."""
        raise TypeError(f"{type(self).__name__} must define combine(left, right)")

    def combine_logs(self, left: Tensor, right: Tensor) -> Tensor:
        """The logarithms of the unnormalised weights of both as one."""
        raise TypeError(f"{type(self).__name__} must define combine_logs(left, right)")

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.combine(self.left(query, key), self.right(query, key))

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return self.combine(*(_score(*each) for each in self._pairs(query, key)))

    def log_score(self, query: Tensor, key: Tensor) -> Tensor:
        return self.combine_logs(*(_log_score(*each) for each in self._pairs(query, key)))

    def log_scores(self, query: Tensor, key: Tensor) -> Tensor:
        return self.combine_logs(
            self.left.log_scores(query, key), self.right.log_scores(query, key)
        )

    def _pairs(self, query: Tensor, key: Tensor) -> list[tuple[Similarity, Tensor, Tensor]]:
        """The parts, each with its own columns of prepared tokens."""
        columns = []
        for tokens in (query, key):
            spans = [self._columns(part, tokens.shape[-1]) for part in (self.left, self.right)]
            columns.append([tokens[..., first:last] for first, last in spans])
        return list(zip((self.left, self.right), *columns, strict=True))

    def _columns(self, part: Similarity, size: int) -> tuple[int, int]:
        """From which column to which a part has its prepared tokens, of `size` columns in all."""
        times, more = self.prepared_size()
        dim = (size - more) // times if times else 0
        if _takes_tokens(part):
            return 0, dim
        first = dim if _takes_tokens(self.left) or _takes_tokens(self.right) else 0
        if part is self.right and not _takes_tokens(self.left):
            first += _prepared_size(self.left).columns(dim)
        return first, first + _prepared_size(part).columns(dim)

    def prepared_size(self) -> PreparedSize:
        parts = (self.left, self.right)
        sizes = [_prepared_size(part) for part in parts if not _takes_tokens(part)]
        shared = len(sizes) < len(parts)  # one copy of the tokens
        return PreparedSize(sum(x.times for x in sizes) + shared, sum(x.more for x in sizes))

    def as_fused(self, query: Tensor, key: Tensor) -> FusedForm | str:
        return fused_combination(self, query, key) or super().as_fused(query, key)

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> Similarity:
        if not self.per_head:
            return self
        return type(self)(
            self.left.narrow(axis, start, stop, batch), self.right.narrow(axis, start, stop, batch)
        )

    def tensors(self) -> tuple[Tensor, ...]:
        return *self.left.tensors(), *self.right.tensors()

    def signature(self) -> Hashable | None:
        left, right = self.left.signature(), self.right.signature()
        return None if left is None or right is None else (type(self), left, right)

    def pair_width(self, dim: int) -> int:
        return 1 + self.left.pair_width(dim) + self.right.pair_width(dim)

    def pair_flops(self, dim: int) -> int:
        return 1 + self.left.pair_flops(dim) + self.right.pair_flops(dim)

    def describe(self) -> str:
        return f" {self.sign} ".join(self._side(part) for part in (self.left, self.right))

    def _side(self, part: Similarity) -> str:
        nested = isinstance(part, _Parts) and part.sign != self.sign
        return f"({part.describe()})" if nested else part.describe()

    def __repr__(self) -> str:
        return self.describe()


class Sum(_Parts):
    """left + right: scores added, or kernels, to which weights are then proportional."""

    sign = "+"

    def __init__(self, left: Similarity, right: Similarity) -> None:
        super().__init__(left, right)
        if left.weighting != right.weighting:
            raise TypeError(
                f"+ adds scores, or kernels to which weights are proportional; "
                f"{left.describe()} has {left.weighting} weights and {right.describe()} "
                f"{right.weighting} ones"
            )
        self.may_vanish = left.may_vanish and right.may_vanish
        self.nonnegative = left.nonnegative and right.nonnegative

    def combine(self, left: Tensor, right: Tensor) -> Tensor:
        return left + right

    def combine_logs(self, left: Tensor, right: Tensor) -> Tensor:
        return left + right if self.weighting == "softmax" else _log_sum(left, right)

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm | str:
        if self.weighting != "softmax":
            return "the logarithm of a sum of kernels is no dot product"
        return _sum_of_dots(self.left.as_dot(query, key), self.right.as_dot(query, key))


class Product(_Parts):
    """left * right, both kernels: proportional weights multiply, their logarithms add."""

    sign = "*"

    def __init__(self, left: Similarity, right: Similarity) -> None:
        super().__init__(left, right)
        for part in (left, right):
            if part.weighting != "proportional":
                raise TypeError(
                    f"* multiplies kernels, to which weights are proportional; "
                    f"{part.describe()} has {part.weighting} weights"
                )
        self.may_vanish = left.may_vanish or right.may_vanish
        self.nonnegative = left.nonnegative and right.nonnegative

    def combine(self, left: Tensor, right: Tensor) -> Tensor:
        return left * right

    def combine_logs(self, left: Tensor, right: Tensor) -> Tensor:
        return left + right

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm | str:
        return _sum_of_dots(self.left.as_dot(query, key), self.right.as_dot(query, key))


def _takes_tokens(part: Similarity) -> bool:
    """Whether a part compares the tokens themselves, or makes of them what has no known size."""
    return type(part).prepare is Similarity.prepare or part.prepared_size() is None


def _prepared_size(part: Similarity) -> PreparedSize:
    size = part.prepared_size()
    assert size is not None, "others take the tokens themselves"
    return size


def _score(part: Similarity, query: Tensor, key: Tensor) -> Tensor:
    if _takes_tokens(part):
        return part(query, key)  # type: ignore[no-any-return]
    return part.score(query, key)


def _log_score(part: Similarity, query: Tensor, key: Tensor) -> Tensor:
    return part.log_scores(query, key) if _takes_tokens(part) else part.log_score(query, key)


def _beside(left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    joined = []
    for one, other in zip(left, right, strict=True):
        joined.append(_columns_of(one, other))
    return joined[0], joined[1]


def _columns_of(left: Tensor, right: Tensor) -> Tensor:
    """The columns of both, their leading axes broadcast."""
    if left.shape[:-1] != right.shape[:-1]:
        lead = torch.broadcast_shapes(left.shape[:-1], right.shape[:-1])
        left, right = left.expand(*lead, -1), right.expand(*lead, -1)
    return torch.cat([left, right], dim=-1)


def _sum_of_dots(left: DotForm | str, right: DotForm | str) -> DotForm | str:
    """The dot product of tokens side by side."""
    if isinstance(left, str) or isinstance(right, str):
        return left if isinstance(left, str) else str(right)
    return DotForm(
        _columns_of(left.query * left.scale, right.query * right.scale),
        _columns_of(left.key, right.key),
        1.0,
        _plus(left.key_bias, right.key_bias),
        _plus(left.offset, right.offset),
    )


def _plus(left: Tensor | None, right: Tensor | None) -> Tensor | None:
    if left is None or right is None:
        return right if left is None else left
    return left + right


def _log_sum(left: Tensor, right: Tensor) -> Tensor:
    """log(e^left + e^right), −inf where both are: the larger one, and what the other adds."""
    gap = torch.where(left == right, 0.0, left - right).abs()  # of −inf and −inf: none
    return torch.maximum(left, right) + torch.log1p(torch.exp(-gap))


def as_part(other: object, sign: Literal["+", "*"]) -> Similarity:
    """What stands beside a similarity in a sum or product."""
    if isinstance(other, Similarity):
        return other
    if callable(other):
        return FromCallable(other)
    raise TypeError(f"{sign} takes a similarity beside a similarity; got {type(other).__name__}")
