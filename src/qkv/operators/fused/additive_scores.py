"""wᵀ tanh(q + k) for every pair, with first and second derivatives written out.

Of the block (…, n, m, h) of hidden numbers each derivative makes as few copies as it can: sums over
keys or pairs are matrix products.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


def additive_scores(query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
    """Scores (…, n, m) of projected queries (…, n, h) and keys (…, m, h)."""
    return _Scores.apply(query, key, weight)  # type: ignore[no-untyped-call,no-any-return]


class _Scores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, weight: Tensor) -> Tensor:
        hidden = _hidden(query, key)
        ctx.save_for_backward(hidden, hidden.square(), query, key, weight)
        return hidden @ weight

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        hidden, squared, query, key, weight = ctx.saved_tensors
        return _Pull.apply(grad, query, key, weight, hidden, squared)  # type: ignore[no-untyped-call]


class _Pull(torch.autograd.Function):
    """The gradients of query, key and weight for that of the scores."""

    @staticmethod
    def forward(ctx: Any, *arguments: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        grad, query, key, weight, hidden, squared = arguments
        ctx.save_for_backward(*arguments)
        of_query = grad.sum(-1).unsqueeze(-1) - _over_keys(grad, squared)
        of_key = grad.sum(-2).unsqueeze(-1) - _over_queries(grad, squared)
        return (
            (of_query * weight).sum_to_size(query.shape),
            (of_key * weight).sum_to_size(key.shape),
            _over_pairs(grad, hidden),
        )

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, up_query: Tensor, up_key: Tensor, up_weight: Tensor) -> Any:
        # What is differentiated: Σ grad · Σ_f (w D (up_query + up_key) + up_weight tanh), with
        # D = 1 − tanh² the slope of tanh, whose own slope is −2 tanh D.
        grad, query, key, weight, hidden, squared = ctx.saved_tensors
        moved = (up_query.unsqueeze(-2) + up_key.unsqueeze(-3)).expand_as(hidden)
        moved = torch.addcmul(moved, moved, squared, value=-1)  # D · (up_query + up_key)
        of_grad = moved @ weight + hidden @ up_weight
        of_weight = _over_pairs(grad, moved)
        bent = moved.mul_(hidden)
        of_query = up_weight * (grad.sum(-1).unsqueeze(-1) - _over_keys(grad, squared))
        of_query -= 2 * weight * _over_keys(grad, bent)
        of_key = up_weight * (grad.sum(-2).unsqueeze(-1) - _over_queries(grad, squared))
        of_key -= 2 * weight * _over_queries(grad, bent)
        of_query, of_key = of_query.sum_to_size(query.shape), of_key.sum_to_size(key.shape)
        return of_grad, of_query, of_key, of_weight, None, None


#: Up to here e²ᵃ e²ᵇ is within the range of float32.
MODERATE = 20.0


def _hidden(query: Tensor, key: Tensor) -> Tensor:
    """tanh(q + k), (…, n, m, h): as 1 − 2/(e²ᵃe²ᵇ + 1), with exponentials of tokens alone."""
    query, key = query.unsqueeze(-2), key.unsqueeze(-3)
    if query.numel() and key.numel():
        reach = max(query.abs().max().item(), key.abs().max().item())
        if reach < MODERATE:  # not where it is NaN
            power = (2 * query).exp() * (2 * key).exp()
            return power.add_(1).reciprocal_().mul_(-2).add_(1)
    return (query + key).tanh_()


def _over_keys(grad: Tensor, features: Tensor) -> Tensor:
    """Σⱼ gradᵢⱼ featuresᵢⱼ, (…, n, h)."""
    return (grad.unsqueeze(-2) @ features).squeeze(-2)


def _over_queries(grad: Tensor, features: Tensor) -> Tensor:
    """Σᵢ gradᵢⱼ featuresᵢⱼ, (…, m, h)."""
    return (grad.unsqueeze(-1) * features).sum(-3)


def _over_pairs(grad: Tensor, features: Tensor) -> Tensor:
    """Σ over all pairs, (h,)."""
    return grad.reshape(-1) @ features.reshape(-1, features.shape[-1])
