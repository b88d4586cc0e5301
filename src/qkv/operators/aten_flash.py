"""PyTorch's fused kernel for CPUs itself, and what it wants of its arguments."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.normalize import normalize

# The names are private, but only this kernel gives the total and takes slices; a test guards them.
FLASH = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)
FLASH_BACKWARD = getattr(
    torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu_backward", None
)


#: With fewer keys than the widest registers have lanes the kernel overlooks NaN.
FEW_KEYS = 16
#: Types in which the kernel answers 0 where a score is infinite; the total shows it.
HALF = (torch.bfloat16, torch.float16)


def flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    causal: bool,
    mask: Tensor | None,
    scale: float,
    empty: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """The kernel's answers and log totals, in which NaN shows however few the keys are.

    `empty` (…, n): queries that may attend to nothing, where that is known.
    """
    assert FLASH is not None
    out, log_total = FLASH(query, key, value, 0.0, causal, attn_mask=mask, scale=scale)
    if key.shape[-2] < FEW_KEYS:
        taint = _taint(query, key, causal, mask, empty)
    elif query.dtype in HALF:
        taint = torch.where(log_total == torch.inf, torch.nan, 0.0)
    else:
        return out, log_total
    return out + taint.unsqueeze(-1).to(out.dtype), log_total + taint


def _taint(
    query: Tensor, key: Tensor, causal: bool, mask: Tensor | None, empty: Tensor | None
) -> Tensor:
    """0, or NaN where a query, or a key that it may attend to, is not finite, (…, n)."""
    taint = (query * 0).sum(-1)
    of_key = (key * 0).sum(-1)  # (…, m)
    if causal:
        return taint + of_key.cumsum(-1)[..., : query.shape[-2]]
    if mask is None:
        return taint + of_key.sum(-1, keepdim=True)
    hidden = mask == -torch.inf  # (…, n, m)
    taint = taint.masked_fill(hidden.all(-1) if empty is None else empty, 0.0)
    return taint + torch.where(hidden, 0.0, of_key.unsqueeze(-2)).sum(-1)


def four_axes(tensor: Tensor, batch: tuple[int, ...], size: int) -> Tensor:
    """(…, rows, dim) -> (batch, heads, rows, size), padded with zeros, without a copy if it can."""
    shape = tensor.shape
    as_wanted = len(shape) == 4 and len(batch) == 2 and shape[3] == size
    if as_wanted and shape[0] == batch[0] and shape[1] == batch[1] and tensor.stride(3) == 1:
        return tensor
    rows, dim = shape[-2:]
    if dim < size:
        tensor = F.pad(tensor, (0, size - dim))  # in the order of axes in which it lies, too
    if tensor.stride(-1) != 1 and size > 1:
        tensor = tensor.contiguous()
    tensor = tensor.expand(*batch, rows, size)
    if len(batch) == 2:
        return tensor
    # The last axis stays one of its own: keys that are expanded along it need no copy.
    *lead, last = batch or (1,)
    return tensor.reshape(math.prod(lead), last, rows, size)


def plain_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> Tensor:
    """What the kernel computes, as a formula that may be differentiated any number of times."""
    scores = scale * query @ key.mT
    if mask is not None:
        scores = scores + mask
    allowed = torch.ones_like(scores, dtype=torch.bool).tril() if causal else None
    weights, _ = normalize(scores, allowed, may_be_empty=mask is not None)
    return weights @ value
