"""PyTorch's fused kernel, for every similarity that can be written as a dot product.

The kernel is fast only where all its wishes are met (four axes, one size for query, key and value,
last stride 1, no dropout, no mask that needs a gradient); elsewhere torch silently builds the
whole matrix. So this operator shapes its arguments to the wishes, and declines the rest.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv import cost
from qkv.broadcast import query_rows
from qkv.mask import Causal, Tile
from qkv.memory import TILE_BYTES, readable
from qkv.operators import relative
from qkv.operators.arithmetic import settled
from qkv.operators.aten_flash import (
    FEW_KEYS,
    FLASH,
    FLASH_BACKWARD,
    HALF,
    flash,
    four_axes,
    plain_attention,
)
from qkv.operators.base import Cost, Result
from qkv.operators.second_order import Gradients
from qkv.operators.tiles import TileFunction, in_tiles, rows_at_once
from qkv.problem import Problem
from qkv.similarity import Dot, DotForm, ScaledDot
from qkv.similarity.base import may_be_dot
from qkv.tracing import can_read_values, takes_plain_formula

#: Seconds to give tensors four axes, which the lines of `qkv.cost` hold: they are fitted to three.
#: Measured at 16 tokens, forwards (AMD EPYC with AVX-512): 39 µs with three axes, 30 with four.
RESHAPE = 9e-6


def refusal(problem: Problem) -> str | None:
    """Why PyTorch's kernel does not support a problem, as far as sizes, types and masks tell."""
    mask = problem.mask
    if not may_be_dot(problem.similarity):
        return f"{type(problem.similarity).__name__} is not a dot product"
    if problem.dropout is not None:
        return "PyTorch's kernel would materialise all weights under dropout"
    if problem.pairs == 0:
        return "there is nothing to compare"
    if takes_plain_formula():
        return "PyTorch's kernel supports neither forward mode nor nested transforms"
    if mask is not None and mask.needs_scores:
        return f"{mask!r} ranks scores, which PyTorch's kernel does not return"
    if problem.bias is not None and problem.bias.requires_grad and torch.is_grad_enabled():
        return "PyTorch's kernel has no gradient for a floating mask"
    if problem.learns_positions:
        return "PyTorch's kernel has no gradient for a bias"
    if problem.wants_total:
        if FLASH is None or problem.query.device.type not in ("cpu", "meta"):
            return "PyTorch's kernel does not return the total weight on this device"
        if problem.needs_grad or torch.compiler.is_compiling():
            return "PyTorch's kernel has no gradient for the total weight"
    return None


def _form(problem: Problem) -> DotForm | str:
    """The dot product that a similarity is for these numbers."""
    form = problem.similarity.as_dot(problem.query, problem.key)
    if isinstance(form, str):
        return form
    if problem.mask is not None and form.offset is not None:
        return "a masked key would move the centre from which distances are measured"
    return form


def estimate(problem: Problem) -> float:
    """Seconds; the kernel's own causal mode skips keys by blocks of queries."""
    causal, pairs = problem.is_plainly_causal, share(problem)
    time = cost.seconds(problem, "sdpa", "dot", pairs)
    if len(problem.batch) == 2:
        time -= RESHAPE
    if problem.similarity.depends_on_spread:
        time += cost.seconds(problem, "centre", "any")
    masked = problem.mask is not None and not causal
    if (masked or problem.position_bias is not None) and not relative.has_line(problem):
        time += cost.seconds(problem, "mask", "sdpa")
    return time


def share(problem: Problem) -> float:
    """The share of pairs that the kernel visits, and more where threads are left without work."""
    visited, block = 1.0, _block(problem.n)
    if problem.position_bias is not None:
        visited = relative.share(problem) if relative.has_line(problem) else 1.0
    elif problem.is_plainly_causal:  # a block sees the keys up to its last query
        visited = min(1.0, (problem.n + block) / (2 * problem.n))
    entries = math.prod(problem.batch)
    forward = cost.idle(entries * math.ceil(problem.n / block))
    if not problem.needs_grad:
        return visited * forward
    # The way back is shared out by entries of the batch alone, and takes twice as long.
    return visited * (forward + 2 * cost.idle(entries)) / 3


def _block(n: int) -> int:
    """The queries that a thread of the kernel takes at a time."""
    return 32 if n < 192 else 64 if n < 768 else 256


def offer(problem: Problem) -> Cost | str:
    """All pairs; memory for masks alone."""
    form = _form(problem)
    if isinstance(form, str):
        return form
    reason = f"{problem.similarity.describe()} can be written as a dot product"
    if isinstance(problem.similarity, (Dot, ScaledDot)):
        reason = "a dot product"
    reason += ", for which PyTorch has a fused kernel"
    if relative.has_line(problem):
        size = 4 * math.prod(problem.batch) * (problem.n + problem.m)
        return Cost(problem.flops, size, f"{reason}; the bias is one number for each distance")
    per_query = problem.mask is not None and problem.mask.per_query
    if problem.position_bias is None and (not per_query or problem.is_plainly_causal):
        return Cost(problem.flops, 0, reason)
    # Positions are whole numbers of 8 bytes, compared, and become numbers of the kernel's type.
    # Biases take as much again, and so do masks on the way back.
    twice = 1 if problem.position_bias is None and not problem.needs_grad else 2
    size = twice * min(problem.pairs * 16, max(5 * TILE_BYTES, problem.m * 16))
    what = "mask" if problem.position_bias is None else "bias"
    return Cost(problem.flops, size, f"{reason}; the {what} is made {readable(size)} at a time")


def answer(problem: Problem) -> Result | str:
    """softmax(scale · query keyᵀ) value, Eqs. 8 to 11, by the fused kernel."""
    form = _form(problem)
    if isinstance(form, str):
        return form
    form = _upright(form)
    if form.key_bias is not None and (problem.needs_grad or problem.position_bias is not None):
        form = _augmented(form)  # the kernel gives a mask no gradient, and takes one alone
    d, d_v, batch = form.query.shape[-1], problem.value.shape[-1], problem.batch
    size = max(d, d_v)
    query, key = four_axes(form.query, batch, size), four_axes(form.key, batch, size)
    # Distances are compared in float32 at least; values then follow.
    value = problem.value if problem.value.dtype == query.dtype else problem.value.to(query.dtype)
    value = four_axes(value, batch, size)
    if form.key_bias is not None:
        bias = four_axes(form.key_bias.unsqueeze(-2), batch, problem.m)
        total = problem.wants_total
        out, log_total = _kernel(query, key, value, bias, False, form.scale, total)
    else:
        out, log_total = _masked(problem, query, key, value, form.scale)
    if len(batch) != 2:
        out = out.reshape(*batch, problem.n, size)
    if d_v < size:
        out = out[..., :d_v]
    if out.dtype != problem.value.dtype:
        out = out.to(problem.value.dtype)
    if log_total is not None:
        log_total = log_total.reshape(*batch, problem.n)
        log_total = log_total if form.offset is None else log_total + form.offset
    if problem.mask is not None or not problem.is_eager:
        return out, log_total
    # Of few keys, and in half types, the kernel overlooks what is not finite, or says NaN at most.
    overlooks = problem.m < FEW_KEYS or query.dtype in HALF or log_total is not None
    return settled(problem, (out, log_total)) if overlooks else (out, log_total)


def _upright(form: DotForm) -> DotForm:
    """The same with a positive scale: the kernel hides keys first, and −inf times −1 is inf."""
    if form.scale > 0:
        return form
    if form.scale < 0:
        return form._replace(query=-form.query, scale=-form.scale)
    return form._replace(query=form.query * 0.0, scale=1.0)


def _augmented(form: DotForm) -> DotForm:
    """The term for each key as one dimension more: [scale·q, 1]·[k, bias]."""
    assert form.key_bias is not None
    ones = torch.ones_like(form.query[..., :1])
    query = torch.cat([form.query * form.scale, ones], dim=-1)
    key = torch.cat([form.key, form.key_bias.unsqueeze(-1)], dim=-1)
    return DotForm(query, key, offset=form.offset)


def _masked(problem: Problem, query: Tensor, key: Tensor, value: Tensor, scale: float) -> Result:
    n, mask, total = problem.n, problem.mask, problem.wants_total
    if problem.position_bias is not None:
        line = relative.line_of(problem)
        if line is not None:

            def attend(query: Tensor, key: Tensor, value: Tensor, *masks: Any) -> Result:
                mask, empty = masks
                return _kernel(query, key, value, mask, False, scale, total, empty)

            return relative.attend_along(problem, line, query, key, value, attend)
    elif mask is None or (isinstance(mask, Causal) and n == 1):
        return _kernel(query, key, value, None, False, scale, total)
    elif problem.is_plainly_causal:
        return _kernel(query, key, value, None, True, scale, total)
    elif not mask.per_query:
        kernel_mask = _kernel_mask(problem, problem.tile(0, n), query.dtype)
        return _kernel(query, key, value, kernel_mask, False, scale, total)

    def rows(start: int, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        tile = problem.tile(start, start + query.shape[-2])
        kernel_mask = _kernel_mask(problem, tile, query.dtype)
        out, log_total = _kernel(query, key, value, kernel_mask, False, scale, total)
        return (out,) if log_total is None else (out, log_total.unsqueeze(-1))

    # A mask of all queries at once would be as large as the weights, so it is made in tiles.
    out, *log_total = in_tiles(rows, [query], [key, value], _rows_at_once(problem))
    return out, log_total[0].squeeze(-1) if total else None


def _rows_at_once(problem: Problem) -> int:
    held = [] if problem.mask is None else problem.mask.tensors()
    whole = problem.position_bias is not None or any(tensor.ndim > 2 for tensor in held)
    entries = math.prod(problem.batch) if whole else 1
    return rows_at_once(TILE_BYTES, 4 * problem.m * entries)


def _kernel_mask(problem: Problem, tile: Tile, dtype: torch.dtype) -> Tensor:
    """The mask of some queries as the kernel wants it: two axes, or four."""
    added = None
    if problem.bias is not None:
        added = query_rows(problem.bias, tile.start, tile.stop)
    if problem.position_bias is not None:
        by_position = problem.position_bias.scores(tile)
        added = by_position if added is None else added + by_position
    if problem.mask is None:
        assert added is not None
        mask = added.to(torch.promote_types(dtype, torch.float32))
    else:
        mask = problem.mask.allowed(tile)
        if added is not None:
            if problem.position_bias is not None:  # which may be too large for half types
                dtype = torch.promote_types(dtype, torch.float32)
            mask = torch.where(mask, added.to(dtype), -torch.inf)
    if mask.ndim == 2:
        return mask
    return four_axes(mask, problem.batch, mask.shape[-1])


def _kernel(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    scale: float,
    total: bool,
    empty: Tensor | None = None,
) -> Result:
    """The kernel's answer; `empty`: queries whose mask hides all, where that is known."""
    if total:
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.where(mask, 0.0, -torch.inf).to(query.dtype)
        out, log_total = flash(query, key, value, causal, mask, scale, empty)
        if mask is not None:  # the kernel gives an empty row the total exp(0)
            if empty is None:
                empty = (mask == -torch.inf).all(-1)
            log_total = log_total.masked_fill(empty, -torch.inf)
        return out, log_total
    differentiable = torch.is_grad_enabled() and (
        query.requires_grad or key.requires_grad or value.requires_grad
    )
    hides = query.dtype in HALF or (  # what is not finite, see there
        not torch.compiler.is_compiling() and key.shape[-2] < FEW_KEYS
    )
    if (differentiable or hides) and FLASH is not None and query.is_cpu and can_read_values(query):
        out = _TwiceDifferentiable.apply(  # type: ignore[no-untyped-call]
            query, key, value, mask, causal, scale
        )
        return out, None
    out = F.scaled_dot_product_attention(
        query, key, value, attn_mask=mask, is_causal=causal, scale=scale
    )
    return out, None


class _TwiceDifferentiable(torch.autograd.Function):
    """The kernel with its own backward, which may itself be differentiated."""

    @staticmethod
    def forward(
        ctx: Any,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        causal: bool,
        scale: float,
    ) -> Tensor:
        if mask is not None and mask.dtype == torch.bool:
            mask = torch.where(mask, 0.0, -torch.inf).to(query.dtype)
        out, log_total = flash(query, key, value, causal, mask, scale)
        ctx.save_for_backward(query, key, value, mask, out, log_total)
        ctx.causal, ctx.scale = causal, scale
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        arguments = (grad, *ctx.saved_tensors, ctx.causal, ctx.scale)
        pull: Any = _Backward.apply if torch.is_grad_enabled() else _pull
        grads = pull(*arguments)
        return (*grads, None, None, None)


class _Backward(torch.autograd.Function):
    """The kernel's backward, and the plain formula in tiles where that is differentiated."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Any:
        grad, query, key, value, mask, _, _, ctx.causal, ctx.scale = arguments
        ctx.save_for_backward(grad, query, key, value, mask)
        return _pull(*arguments)

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        grad, query, key, value, mask = ctx.saved_tensors

        tile = _formula(mask, ctx.causal, ctx.scale)
        second = Gradients(tile, [query], [key, value], [grad], upstream).pull(
            _formula_rows(query, key)
        )
        return *second.grads, *second.rows, *second.whole, *(None,) * 5


def _formula(mask: Tensor | None, causal: bool, scale: float) -> TileFunction:
    """What the kernel computes, as a formula for some queries at a time."""

    def tile(start: int, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor]:
        stop = start + query.shape[-2]
        own = None if mask is None else query_rows(mask, start, stop)
        if causal:
            keys = torch.arange(key.shape[-2], device=key.device)
            own = torch.where(keys <= keys[start:stop].unsqueeze(-1), 0.0, -torch.inf)
        return (plain_attention(query, key, value, own, False, scale),)

    return tile


def _formula_rows(query: Tensor, key: Tensor) -> int:
    return rows_at_once(
        TILE_BYTES // 2, query.element_size() * query.shape[:-2].numel() * key.shape[-2]
    )


def _pull(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    out: Tensor,
    log_total: Tensor,
    causal: bool,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of query, key and value, by the kernel.

    It computes weights again as exp(score − total). Where the digits of these are used up before
    the point, weights would be any number, inf too: the formula, which shifts scores by their
    maximum, serves there.
    """
    assert FLASH_BACKWARD is not None
    # An empty query's total is 0 in what the kernel gives out.
    if (
        not torch.linalg.vector_norm(log_total, torch.inf).item()
        < 1 / torch.finfo(log_total.dtype).eps
    ):
        with torch.enable_grad():
            inputs = [x.detach().requires_grad_() for x in (query, key, value)]
            tile, rows = _formula(mask, causal, scale), _formula_rows(query, key)
            (again,) = in_tiles(tile, inputs[:1], inputs[1:], rows)
            return torch.autograd.grad(again, inputs, grad)  # type: ignore[return-value]
    return FLASH_BACKWARD(  # type: ignore[no-any-return]
        grad, query, key, value, out, log_total, 0.0, causal, attn_mask=mask, scale=scale
    )
