"""Additive attention: a small network scores each pair."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from qkv.similarity.base import FusedForm, PreparedSize, Similarity, widen
from qkv.similarity.dot import check_sizes


class Additive(Similarity):
    """f(q, k) = wᵀ tanh(W_q q + W_k k + b), Eq. 12; without b where ``bias=False``.

    Queries (d_q) and keys (d_k) of different sizes meet in `hidden_dim` dimensions.
    """

    family = "additive"

    def __init__(self, query_dim: int, key_dim: int, hidden_dim: int, bias: bool = True) -> None:
        super().__init__()
        self.query_projection = nn.Linear(query_dim, hidden_dim, bias=bias)
        self.key_projection = nn.Linear(key_dim, hidden_dim, bias=False)
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
        return widen(self.query_projection(query)), widen(self.key_projection(key))

    def prepared_size(self) -> PreparedSize:
        return PreparedSize(0, self.weight.numel())

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        hidden = (query.unsqueeze(-2) + key.unsqueeze(-3)).tanh_()  # (..., n, m, h), made once
        return hidden @ self.weight.to(hidden.dtype)

    def as_fused(self, query: Tensor, key: Tensor) -> FusedForm:
        query, key = self.prepare(query, key)
        return FusedForm("additive", query, key, self.weight.to(query.dtype))

    def tensors(self) -> tuple[Tensor, ...]:
        query, key = self.query_projection, self.key_projection
        own = (query.weight, key.weight, self.weight)
        return own if query.bias is None else (*own, query.bias)

    def pair_width(self, dim: int) -> int:
        return self.weight.numel()

    def pair_flops(self, dim: int) -> int:
        return 12 * self.weight.numel()  # an add, a tanh (about nine) and a multiply-add
