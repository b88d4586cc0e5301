"""A kernel with a bandwidth for each query."""

from __future__ import annotations

from torch import Tensor

from qkv.similarity.distance import squared_distance
from qkv.similarity.kernel import Kernel


class Adaptive(Kernel):
    """A kernel whose queries bring their own width, in an additional last column."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel
        self.may_vanish = kernel.may_vanish

    def check(self, query: Tensor, key: Tensor) -> None:
        self.kernel.check(query[..., :-1], key)

    def _squared(self, query: Tensor, key: Tensor) -> Tensor:
        unit = self.kernel.bandwidth(key)
        return squared_distance(query[..., :-1], key, unit) / query[..., -1:].square()

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return self.kernel.profile(self._squared(query, key))

    def log_score(self, query: Tensor, key: Tensor) -> Tensor:
        return self.kernel.log_profile(self._squared(query, key))
