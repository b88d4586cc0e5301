"""A similarity whose tokens were prepared before, as a cache keeps them."""

from __future__ import annotations

from collections.abc import Hashable

from torch import Tensor

from qkv.similarity.additive import Additive
from qkv.similarity.base import FusedForm, Similarity


class Prepared(Similarity):
    """A similarity between queries and keys that it has prepared before."""

    def __init__(self, similarity: Similarity) -> None:
        super().__init__()
        self.similarity = similarity
        self.weighting = similarity.weighting
        self.family = similarity.family
        self.may_vanish = similarity.may_vanish
        self.nonnegative = similarity.nonnegative
        self.has_steps = similarity.has_steps
        self.per_head = similarity.per_head

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> Similarity:
        return Prepared(self.similarity.narrow(axis, start, stop, batch))

    def check(self, query: Tensor, key: Tensor) -> None:
        """Sizes were checked when the tokens were prepared."""

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return self.similarity.score(query, key)

    def log_score(self, query: Tensor, key: Tensor) -> Tensor:
        return self.similarity.log_score(query, key)

    def as_fused(self, query: Tensor, key: Tensor) -> FusedForm | str:
        if isinstance(self.similarity, Additive):
            return self.similarity.fuse_prepared(query, key)
        return super().as_fused(query, key)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.similarity.tensors()

    def signature(self) -> Hashable | None:
        known = self.similarity.signature()
        return None if known is None else (Prepared, known)

    def pair_width(self, dim: int) -> int:
        return self.similarity.pair_width(dim)

    def pair_flops(self, dim: int) -> int:
        return self.similarity.pair_flops(dim)
