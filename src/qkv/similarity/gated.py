"""Gated attention: another similarity, let through by a learned gate."""

from __future__ import annotations

from collections.abc import Callable, Hashable

import torch
from torch import Tensor, nn

from qkv.similarity.base import FusedForm, PreparedSize, Similarity, widen
from qkv.similarity.dot import Dot, check_sizes, scaled_product
from qkv.tracing import is_eager


def gated(query: Tensor, key: Tensor, base: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The scores of tokens whose first columns are their terms of the gate."""
    gate = torch.sigmoid(query[..., :1] + key[..., :1].mT)  # (..., n, m)
    return gate * base(query[..., 1:], key[..., 1:])


def gated_dot(query: Tensor, key: Tensor, scale: Tensor) -> Tensor:
    """The same where the base is a dot product."""
    return gated(query, key, lambda query, key: scaled_product(query, key, scale))


class Gated(Similarity):
    """f(q, k) = g · base(q, k) with the gate g = sigmoid(W_g [q; k]).

    W_g [q; k] is a term of the query plus a term of the key, so each is computed once per token.
    """

    family = "gated"

    def __init__(self, query_dim: int, key_dim: int, base: Similarity | None = None) -> None:
        super().__init__()
        self.base = Dot() if base is None else base
        if not isinstance(self.base, Similarity):
            raise TypeError(f"base must be a similarity; got {type(base).__name__} {base!r}")
        if self.base.weighting != "softmax":
            raise ValueError(
                f"base must be a similarity with softmax weights; got {type(self.base).__name__}"
            )
        self.query_gate = nn.Linear(query_dim, 1, bias=False)
        self.key_gate = nn.Linear(key_dim, 1, bias=False)

    def reset_parameters(self) -> None:
        self.query_gate.reset_parameters()
        self.key_gate.reset_parameters()

    def check(self, query: Tensor, key: Tensor) -> None:
        check_sizes(self, query, key, self.query_gate.in_features, self.key_gate.in_features)
        self.base.check(query, key)

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """The base's prepared tokens, each with its term of the gate as a first column."""
        return self._with_gates(query, key, *self.base.prepare(query, key))

    def _with_gates(
        self, query: Tensor, key: Tensor, base_query: Tensor, base_key: Tensor
    ) -> tuple[Tensor, Tensor]:
        return (
            torch.cat([widen(self.query_gate(query)), base_query], dim=-1),
            torch.cat([widen(self.key_gate(key)), base_key], dim=-1),
        )

    def prepared_size(self) -> PreparedSize | None:
        base = self.base.prepared_size()
        return None if base is None else base._replace(more=base.more + 1)

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return gated(query, key, self.base.score)

    def log_scores(self, query: Tensor, key: Tensor) -> Tensor:
        # Tokens of their own for base and gate: joined, as tiles want them, they would be copied.
        gate = widen(self.query_gate(query)) + widen(self.key_gate(key)).mT
        scores = self.base.log_scores(query, key)
        if torch.is_grad_enabled() or not is_eager(query, key):
            return torch.sigmoid(gate) * scores
        return gate.sigmoid_().mul_(scores)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.query_gate.weight, self.key_gate.weight, *self.base.tensors()

    def signature(self) -> Hashable | None:
        known, base = super().signature(), self.base.signature()
        return None if known is None or base is None else (known, base)

    def as_fused(self, query: Tensor, key: Tensor) -> FusedForm | str:
        form = self.base.as_dot(query, key)
        if isinstance(form, str) or form.offset is not None:
            return f"the gate's base, {type(self.base).__name__}, is not a dot product"
        tokens = self._with_gates(query, key, widen(form.query), widen(form.key))
        return FusedForm("gated", *tokens, tokens[0].new_full((1,), form.scale))

    def pair_width(self, dim: int) -> int:
        return 1 + self.base.pair_width(dim)

    def pair_flops(self, dim: int) -> int:
        return 12 + self.base.pair_flops(dim)
