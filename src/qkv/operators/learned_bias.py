"""Dot products beside a bias that is learned: PyTorch's kernel forwards, its gradient by hand.

The kernel gives its mask no gradient. That of the scores is at hand once the weights are, which
the kernel's total makes of the scores without another pass; a tile of queries at a time.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qkv.operators.aten_flash import flash, plain_attention


class BiasedAttention(torch.autograd.Function):
    """softmax(scale · query keyᵀ + bias) value, with a gradient for the bias too.

    All have four axes; those of the bias that lead may be 1.
    """

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, bias: Tensor, scale: float
    ) -> Tensor:
        out, log_total = flash(query, key, value, False, bias, scale)
        ctx.save_for_backward(query, key, value, bias, out, log_total)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, key, value, bias, out, log_total = ctx.saved_tensors
        if torch.is_grad_enabled():  # to be differentiated once more
            plain = plain_attention(query, key, value, bias, False, ctx.scale)
            inputs = (query, key, value, bias)
            wanted = [x for x in inputs if x.requires_grad]
            found = iter(torch.autograd.grad(plain, wanted, grad, create_graph=True))
            return *(next(found) if x.requires_grad else None for x in inputs), None
        scaled = query * ctx.scale
        weights = (scaled @ key.mT).add_(bias).sub_(log_total.unsqueeze(-1)).exp_()
        slope = grad @ value.mT
        slope.sub_((grad * out).sum(-1, keepdim=True)).mul_(weights)
        return (
            (slope @ key).mul_(ctx.scale),
            slope.mT @ scaled,
            weights.mT @ grad,
            slope.sum_to_size(bias.shape),
            None,
        )
