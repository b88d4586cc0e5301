"""A temperature for every similarity, kernels too: the softmax of log_score / temperature."""

from __future__ import annotations

from torch import Tensor

from qkv.similarity.base import Similarity


class LogTempered(Similarity):
    """A similarity whose log_score is divided by a temperature."""

    def __init__(self, similarity: Similarity, temperature: float) -> None:
        super().__init__()
        self.similarity, self.temperature = similarity, temperature
        self.may_vanish = similarity.may_vanish

    def check(self, query: Tensor, key: Tensor) -> None:
        self.similarity.check(query, key)

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return self.similarity.prepare(query, key)

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return self.similarity.log_score(query, key) / self.temperature
