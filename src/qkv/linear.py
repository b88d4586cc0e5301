"""x Wᵀ + b by oneDNN, where that is the quicker of the two libraries that torch multiplies with.

`torch.nn.functional.linear` asks MKL, which leaves AVX-512 of AMD processors unused: for 3,200
tokens of 64 features it takes 132 µs where oneDNN takes 79 (two cores of an AMD EPYC, Zen 5). With
AVX2 both take as long, and small products are MKL's.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.tracing import is_eager

#: Fewer multiply-adds than this are over before oneDNN has begun.
LEAST = 6_000_000
#: Nor do narrow matrices fill its blocks.
NARROW = 32

# The name is private, but it is what torch.compile calls; a test guards it.
_ONEDNN = getattr(torch.ops.mkldnn, "_linear_pointwise", None)


class Linear(nn.Linear):
    """torch.nn.Linear, by :func:`linear`."""

    def forward(self, tokens: Tensor) -> Tensor:
        # Most are small, and each call counts for them; a size that is a symbol decides nothing.
        if torch.compiler.is_compiling() or tokens.numel() * self.out_features < LEAST:
            return super().forward(tokens)
        return linear(tokens, self.weight, self.bias)


def linear(tokens: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Tokens (…, d) times weightᵀ (d, h), plus the bias: (…, h)."""
    if not _is_quicker(tokens, weight):
        return F.linear(tokens, weight, bias)
    wanted = (tokens, weight) if bias is None else (tokens, weight, bias)
    if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in wanted):
        return _Linear.apply(tokens, weight, bias)  # type: ignore[no-untyped-call,no-any-return]
    return _by_onednn(tokens, weight, bias)


def _is_quicker(tokens: Tensor, weight: Tensor) -> bool:
    """Whether oneDNN serves so large a product, and is the quicker one."""
    return (
        is_eager(tokens, weight)
        and tokens.numel() * weight.shape[0] >= LEAST
        and min(weight.shape) >= NARROW
        and tokens.dtype == weight.dtype == torch.float32
        and tokens.is_cpu
        and tokens.is_contiguous()
        and _has_onednn()
        # Who watches torch's functions is to see one that he knows.
        and not torch._C._is_torch_function_mode_enabled()
    )


@cache
def _has_onednn() -> bool:
    return (
        _ONEDNN is not None
        and torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
    )


def _by_onednn(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    assert _ONEDNN is not None
    return _ONEDNN(tokens, weight, bias, "none", [], "")  # type: ignore[no-any-return]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tokens: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(tokens, weight)
        return _by_onednn(tokens, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        tokens, weight = ctx.saved_tensors
        of_tokens, of_weight, of_bias = ctx.needs_input_grad
        rows = grad.reshape(-1, grad.shape[-1])
        return (
            linear(grad, weight.mT) if of_tokens else None,
            # Of sums over many tokens MKL shares out more.
            rows.mT @ tokens.reshape(-1, tokens.shape[-1]) if of_weight else None,
            rows.sum(0) if of_bias else None,
        )
