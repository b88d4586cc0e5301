"""Formulas as someone may write them, drawn at random, and what their kernels are compared with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional as F

import qkv

Formula = Callable[[Tensor, Tensor], Tensor]


def difference(query: Tensor, key: Tensor) -> Tensor:
    return query.unsqueeze(-2) - key.unsqueeze(-3)


def draw_tokens(n: int, m: int, d: int, *lead: int, d_v: int = 3) -> list[Tensor]:
    torch.manual_seed(n * m + d)
    return [torch.randn(*lead, r, c, dtype=torch.float64) for r, c in ((n, d), (m, d), (m, d_v))]


def gradients_of(
    formula: Any, operator: str, tokens: list[Tensor], others: list[Tensor]
) -> list[Tensor]:
    leaves = [x.clone().requires_grad_() for x in tokens]
    partial = qkv.attend_partial(*leaves, similarity=formula, operator=operator)

    def drawn(x: Tensor) -> Tensor:  # linear, so that slopes do not depend on how large totals are
        return (x.reshape(-1) * torch.linspace(-1, 2, x.numel(), dtype=torch.float64)).sum()

    total = drawn(partial.answer) + drawn(partial.log_total)
    found = torch.autograd.grad(total, [*leaves, *others], materialize_grads=True)
    return [partial.answer.detach(), partial.log_total.detach(), *found]


def assert_agree(formula: Any, tokens: list[Tensor], others: list[Tensor] | None = None) -> None:
    """The derived kernel and the formula itself, differentiated by torch."""
    own, plain = (gradients_of(formula, name, tokens, others or []) for name in ("fused", "dense"))
    for found, expected in zip(own, plain, strict=True):
        size = max(1.0, expected.abs().max().item())
        torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10 * size)


UNARY: list[Callable[[Tensor], Tensor]] = [
    torch.abs, torch.tanh, torch.sigmoid, torch.sin, torch.cos, F.softplus, F.gelu, F.silu,
    torch.relu, torch.neg, torch.square, F.logsigmoid,
    lambda x: torch.exp(-x.abs()), lambda x: torch.log1p(x.abs()), lambda x: (1 + x * x).sqrt(),
    lambda x: torch.rsqrt(1.5 + x.abs()), lambda x: x.clamp(-0.7, 0.9), lambda x: x**3,
    lambda x: (1.2 + x.abs()).log(), lambda x: (0.3 + x.abs()) ** 1.7, lambda x: 1 / (1 + x * x),
    lambda x: torch.where(x > 0.2, x, 0.5 * x), lambda x: F.huber_loss(x, x * 0, reduction="none"),
]  # fmt: skip
BINARY: list[Callable[[Any, Any], Any]] = [
    torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum,
    lambda a, b: a / (1.5 + abs(b)), lambda a, b: torch.where(a < b, a * 0.5, b),
]  # fmt: skip
REDUCTIONS: list[Callable[[Tensor], Tensor]] = [
    lambda x: x.sum(-1), lambda x: x.mean(-1), lambda x: x.amax(-1), lambda x: x.amin(-1),
    lambda x: x.max(-1).values, lambda x: torch.linalg.vector_norm(x + 0.01, dim=-1),
    lambda x: x.norm(p=1, dim=-1), lambda x: x.norm(p=3, dim=-1),
]  # fmt: skip


@st.composite
def formulas(draw: st.DrawFn) -> Callable[[Tensor, float, Tensor | float], Formula]:
    """A random formula of a vector, a number and a number for each head."""

    def body() -> Callable[[Tensor, Tensor, Tensor], Tensor]:
        first = draw(st.sampled_from(BINARY))
        steps = draw(st.lists(st.sampled_from(UNARY), max_size=2))
        weighted = draw(st.booleans())
        again = draw(st.sampled_from([None, *BINARY]))

        def run(query: Tensor, key: Tensor, vector: Tensor) -> Tensor:
            x = first(query.unsqueeze(-2), key.unsqueeze(-3))
            for step in steps:
                x = step(x)
            if weighted:
                x = x * vector.to(x.dtype)
            return x if again is None else again(x, key.unsqueeze(-3))

        return run

    parts = [(body(), draw(st.sampled_from(REDUCTIONS))) for _ in range(draw(st.integers(1, 2)))]
    product = draw(st.booleans())
    joined = draw(st.sampled_from(BINARY))
    after = draw(st.sampled_from([None, *UNARY]))

    def make(vector: Tensor, number: float, heads: Tensor | float) -> Formula:
        def formula(query: Tensor, key: Tensor) -> Tensor:
            found = [reduce(part(query, key, vector)) for part, reduce in parts]
            if product:
                found.append(query @ key.mT / number)
            score = found[0]
            for each in found[1:]:
                score = joined(score, each)
            return heads * (score if after is None else after(score))

        return formula

    return make
