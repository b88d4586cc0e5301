"""A similarity whose tokens were prepared before, as a cache keeps them."""

from __future__ import annotations

from torch import Tensor

from qkv.similarity.base import Similarity


class Prepared(Similarity):
    """A similarity between queries and keys that it has prepared before."""

    may_vanish = True  # it may, for all this class knows

    def __init__(self, similarity: Similarity) -> None:
        super().__init__()
        self.similarity = similarity
        self.per_head = similarity.per_head

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> Similarity:
        return Prepared(self.similarity.narrow(axis, start, stop, batch))

    def check(self, query: Tensor, key: Tensor) -> None:
        """Sizes were checked when the tokens were prepared."""

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return self.similarity.score(query, key)

    def log_score(self, query: Tensor, key: Tensor) -> Tensor:
        return self.similarity.log_score(query, key)

    def pair_width(self, dim: int) -> int:
        return self.similarity.pair_width(dim)

    def pair_flops(self, dim: int) -> int:
        return self.similarity.pair_flops(dim)
