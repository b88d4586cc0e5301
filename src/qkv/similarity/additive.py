"""Additive attention: a small network scores each pair."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.linear import Linear
from qkv.similarity.base import FusedForm, PreparedSize, Similarity, widen
from qkv.similarity.dot import check_sizes
from qkv.similarity.pair_scores import additive_scores


class Additive(Similarity):
    """f(q, k) = wᵀ tanh(W_q q + W_k k + b), Eq. 12; without b where ``bias=False``.

    Queries (d_q) and keys (d_k) of different sizes meet in `hidden_dim` dimensions.
    """

    family = "additive"

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int, bias: bool = True) -> None:
        super().__init__()
        self.query_projection = Linear(query_dim, hidden_dim, bias=bias)
        self.key_projection = Linear(key_dim, hidden_dim, bias=False)
        self.weight = nn.Parameter(torch.empty(hidden_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        self.query_projection.reset_parameters()
        self.key_projection.reset_parameters()
        nn.init.uniform_(self.weight, -(self.weight.numel() ** -0.5), self.weight.numel() ** -0.5)

    def check(self, query: Tensor, key: Tensor) -> None:
        dims = self.query_projection.in_features, self.key_projection.in_features
        check_sizes(self, query, key, *dims)

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        query, key = self.query_projection(query), self.key_projection(key)
        return widen(query), widen(key)

    def prepared_size(self) -> PreparedSize:
        return PreparedSize(0, self.weight.numel())

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        weight = self.weight.to(query.dtype)
        scores = additive_scores(query, key, weight)
        return self.compare(query, key) @ weight if scores is None else scores

    @staticmethod
    def compare(query: Tensor, key: Tensor, out: Tensor | None = None) -> Tensor:
        """tanh(q + k) of every pair of projected tokens, (…, n, m, h)."""
        return torch.add(query.unsqueeze(-2), key.unsqueeze(-3), out=out).tanh_()

    @staticmethod
    def slopes(hidden: Tensor, weight: Tensor) -> Tensor:
        """The slope of wᵀ tanh(x) in x where `hidden` is tanh(x): w (1 − tanh²)."""
        return torch.addcmul(weight, hidden * weight, hidden, value=-1.0)

    def as_fused(self, query: Tensor, key: Tensor) -> FusedForm:
        return self.fuse_prepared(*self.prepare(query, key))

    def fuse_prepared(self, query: Tensor, key: Tensor) -> FusedForm:
        return FusedForm("additive", query, key, self.weight.to(query.dtype))

    def tensors(self) -> tuple[Tensor, ...]:
        query, key = self.query_projection, self.key_projection
        own = (query.weight, key.weight, self.weight)
        return own if query.bias is None else (*own, query.bias)

    def pair_width(self, dim: int) -> int:
        return self.weight.numel()

    def pair_flops(self, dim: int) -> int:
        return 12 * self.weight.numel()  # an add, a tanh (about nine) and a multiply-add
