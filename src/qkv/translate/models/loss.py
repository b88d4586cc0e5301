"""Output layer, softmax and cross entropy in one: the scores of the vocabulary are never stored.

For features x and scores z = Wx + b of a vocabulary of size V, the loss of a token y is
−Σᵥ tᵥ log softmax(z)ᵥ with t = (1 − ε)·onehot(y) + ε/V, and its gradient in z is softmax(z) − t.
Scores are made, turned into their gradient in place and used up, a slice of tokens at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkv.jit.arguments import has_kernels
from qkv.translate.models.softmax_gradient import turn

#: Scores held at once: enough for the product to run at full speed, and no more.
_SLICE = 2**22


def smoothed_loss(
    features: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, smoothing: float = 0.0
) -> Tensor:
    """Cross entropy, summed over tokens, of features (n, r) and labels (n,)."""
    if not 0.0 <= smoothing < 1.0:
        raise ValueError(f"smoothing must be at least 0 and below 1; got {smoothing}")
    loss: Tensor = _SmoothedLoss.apply(features, weight, bias, labels, smoothing)  # type: ignore[no-untyped-call]
    return loss


def _turned_by_torch(scores: Tensor, bias: Tensor, labels: Tensor, smoothing: float) -> Tensor:
    """The same as :func:`turn`, for any device and type."""
    y, vocabulary = labels.unsqueeze(-1), scores.shape[-1]
    log_p = torch.log_softmax(scores.add_(bias), dim=-1, out=scores)
    loss = -(1.0 - smoothing) * log_p.gather(-1, y).sum() - smoothing / vocabulary * log_p.sum()
    grad = log_p.exp_().sub_(smoothing / vocabulary)
    grad.scatter_add_(-1, y, grad.new_full(y.shape, smoothing - 1.0))
    return loss


class _SmoothedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, weight: Tensor, bias: Tensor, labels: Tensor, smoothing: float
    ) -> Tensor:
        needed = any(ctx.needs_input_grad)
        grads = tuple(torch.zeros_like(x) for x in (features, weight, bias)) if needed else None
        total = features.new_zeros(())
        rows = max(1, _SLICE // max(1, len(weight)))
        room = features.new_empty(min(rows, len(features)), len(weight))
        for start in range(0, len(features), rows):
            part = slice(start, start + rows)
            x, y = features[part], labels[part]
            scores = torch.mm(x, weight.mT, out=room[: len(x)])
            turned = turn if has_kernels(scores) else _turned_by_torch
            total += turned(scores, bias, y, smoothing)
            if grads is None:
                continue
            grad = scores  # by now
            torch.mm(grad, weight, out=grads[0][part])
            grads[1].addmm_(grad.mT, x)
            grads[2].add_(grad.sum(0))
        if grads is not None:
            ctx.save_for_backward(*grads)
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return *(saved * grad for saved in ctx.saved_tensors), None, None
