"""Dot products where each query sees one run of keys: only the keys that count are touched.

Window, Blocks, Dilated, Causal and their ``&`` with each other and with Lengths leave each query
one run of keys. Queries are taken in blocks; a block meets only the keys between the first start
and the last stop of its runs, in one call of PyTorch's fused kernel, forwards and backwards.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv import cost
from qkv.mask import Runs
from qkv.operators.aten_flash import FLASH, FLASH_BACKWARD, flash, four_axes, plain_attention
from qkv.operators.bands import BLOCK, MOST_BLOCKS, groups
from qkv.operators.base import Cost, Result
from qkv.operators.strides import Answer, by_residue, runs_of_heads
from qkv.problem import Problem
from qkv.similarity import DotForm
from qkv.similarity.base import may_be_dot
from qkv.tracing import takes_plain_formula


def refusal(problem: Problem) -> str | None:
    """Why slices of keys do not support a problem, as far as sizes and types tell."""
    if problem.mask is None or not problem.mask.per_query:
        return "all queries may see the same keys"
    if not may_be_dot(problem.similarity):
        return f"{type(problem.similarity).__name__} is not a dot product"
    if problem.dropout is not None:
        return "PyTorch's kernel does not support dropout"
    if takes_plain_formula():
        return "PyTorch's kernel supports neither forward mode nor nested transforms"
    if problem.pairs == 0:
        return "there is nothing to compare"
    if FLASH is None or problem.query.device.type not in ("cpu", "meta"):
        return "the kernel that takes slices of keys runs on CPUs only"
    if problem.wants_total and problem.needs_grad:
        return "PyTorch's kernel has no gradient for the total weight"
    return None


class _Bands(NamedTuple):
    """A problem as this operator takes it."""

    form: DotForm
    runs: Runs
    line: Tensor | None  # what is added at each distance


def _bands(problem: Problem) -> _Bands | str:
    """Dot products on CPUs under masks that leave each query one run of keys."""
    assert problem.mask is not None
    runs = problem.mask.as_runs(problem.tile(0, problem.n))
    if runs is None:
        return "the mask leaves some queries more than one run of keys"
    if problem.learns_positions:
        return "PyTorch's kernel has no gradient for a bias"
    line = _line(problem)
    if problem.position_bias is not None and (line is None or runs.stride > 1):
        return "only a bias of the distance alone, without strides, is the same for many blocks"
    form = problem.similarity.as_dot(problem.query, problem.key)
    if isinstance(form, str):
        return form
    if form.offset is not None:
        return "a masked key would move the centre from which distances are measured"
    return _Bands(form, runs, line)


def _line(problem: Problem) -> Tensor | None:
    """What is added at each distance from −(m − 1) to n − 1, (…, n + m − 1), if that is all."""
    if problem.position_bias is None:
        return None
    distance = torch.arange(1 - problem.m, problem.n, device=problem.query.device)
    return problem.position_bias.along(distance)


def estimate(problem: Problem) -> float:
    """Seconds: the pairs that count, and a call of the kernel for some blocks at a time."""
    if problem.mask is None:
        return math.inf
    share = min(1.0, problem.mask.share(problem.n, problem.m) + BLOCK / max(1, problem.m))
    calls = problem.mask.pieces() + math.ceil(problem.n / BLOCK / MOST_BLOCKS)
    calls = 1 + calls * math.prod(problem.batch[:-1])  # heads go through the kernel together
    masks = 1 if problem.position_bias is None else 2  # with a bias each head has its own
    return (
        calls * cost.seconds(problem, "tile", "any")
        + cost.seconds(problem, "sdpa", "dot", share)
        + masks * cost.seconds(problem, "mask", "sdpa", share)
    )


def offer(problem: Problem) -> Cost | str:
    """The pairs that are allowed; a block of masks, and on the way back what keys get of it."""
    bands = _bands(problem)
    if isinstance(bands, str):
        return bands
    share, longest = 1.0, problem.m
    if problem.query.device.type != "meta":
        share, longest = bands.runs.share(problem.m), bands.runs.longest(problem.m)
    reason = f"{share:.2%} of the pairs are allowed, and only those are computed"
    heads = problem.batch[-1] if problem.batch else 1
    masks = 1 if problem.position_bias is None else heads
    width = min(problem.m, longest + BLOCK)
    size = 8 * BLOCK * width * masks  # as numbers, and as truth while they are made
    if problem.needs_grad:
        size += 8 * heads * problem.m * (problem.dim + problem.value.shape[-1])
    return Cost(int(problem.flops * share), size, reason)


def answer(problem: Problem) -> Result | str:
    """softmax(scale · query keyᵀ) value over each query's run of keys."""
    bands = _bands(problem)
    if isinstance(bands, str):
        return bands
    form, runs, line = bands
    d_v = problem.value.shape[-1]
    size = max(form.query.shape[-1], d_v)
    query, key, value = (
        four_axes(x.to(form.query.dtype), problem.batch, size)
        for x in (form.query, form.key, problem.value)
    )
    runs = runs_of_heads(runs, problem.batch, query)
    if line is not None:
        line = line.to(_total_dtype(query))
        if line.ndim > 2 or len(problem.batch) != 2:  # else it is the same for all entries
            line = line.expand(*problem.batch, line.shape[-1]).reshape(*query.shape[:2], -1)
        else:
            line = line.expand(1, query.shape[1], line.shape[-1])

    def attend(query: Tensor, key: Tensor, value: Tensor, start: Tensor, stop: Tensor) -> Answer:
        out, log_total = banded(query, key, value, start, stop, line, form.scale)
        return out, log_total

    out, log_total = by_residue(query, key, value, runs, attend)
    out = out.reshape(*problem.batch, problem.n, size)[..., :d_v].to(problem.value.dtype)
    return out, log_total.reshape(*problem.batch, problem.n)


class _Sum:
    """Rows (h, n, d) of fresh memory that parts are added to; where none is, they become 0.

    Parts come in ascending order as a rule, so most rows are written once and never read.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.written = 0  # of the rows, from the first on

    def add(self, first: int, part: Tensor) -> None:
        stop = first + part.shape[1]
        if first > self.written:
            self._clear(first)
        shared = max(0, min(self.written, stop) - first)
        if shared:
            self.rows[:, first : first + shared] += part[:, :shared]
        if stop > self.written:
            self.rows[:, first + shared : stop] = part[:, shared:]
            self.written = stop

    def finish(self) -> None:
        self._clear(self.rows.shape[1])

    def _clear(self, stop: int) -> None:
        self.rows[:, self.written : stop] = 0
        self.written = stop


@torch.library.custom_op("qkv::banded", mutates_args=())
def banded(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    start: Tensor,
    stop: Tensor,
    line: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    """Answers (b, h, n, d) and log totals (b, h, n) over the keys start ≤ j < stop.

    `line` (b or 1, h, n + m − 1) is added to the scores, by distance.
    """
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    answers = [_Sum(each) for each in out]
    log_total = query.new_full(query.shape[:-1], -torch.inf, dtype=_total_dtype(query))
    for entry, group in groups(key.shape[-2], start, stop, line, query):
        block_answer, totals = flash(
            group.of_queries(query[entry]),
            group.of_keys(key[entry]),
            group.of_keys(value[entry]),
            False,
            group.mask,
            scale,
            group.empty,
        )
        answers[entry].add(group.first, block_answer.flatten(1, 2))
        if group.empty is not None:  # the kernel gives an empty row the total exp(0)
            totals = totals.masked_fill(group.empty, -torch.inf)
        group.of_queries(log_total[entry].unsqueeze(-1)).copy_(totals.unsqueeze(-1))
    for each in answers:
        each.finish()
    return out, log_total


@banded.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    start: Tensor,
    stop: Tensor,
    line: Tensor | None,
    scale: float,
) -> tuple[Tensor, Tensor]:
    out = torch.empty_like(query, memory_format=torch.contiguous_format)
    return out, query.new_empty(query.shape[:-1], dtype=_total_dtype(query))


@torch.library.custom_op("qkv::banded_backward", mutates_args=())
def banded_backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    start: Tensor,
    stop: Tensor,
    line: Tensor | None,
    out: Tensor,
    log_total: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value."""
    assert FLASH_BACKWARD is not None
    wide = _total_dtype(query)  # many blocks add to one key
    grads = [torch.empty(x.shape, dtype=wide) for x in (query, key, value)]
    sums = [[_Sum(each) for each in grad] for grad in grads]
    for entry, group in groups(key.shape[-2], start, stop, line, query):
        totals = group.of_queries(log_total[entry].unsqueeze(-1)).squeeze(-1)
        if group.empty is not None:
            totals = totals.masked_fill(group.empty, 0.0)
        for_query, for_key, for_value = FLASH_BACKWARD(
            group.of_queries(grad[entry]),
            group.of_queries(query[entry]),
            group.of_keys(key[entry]),
            group.of_keys(value[entry]),
            group.of_queries(out[entry]),
            totals,
            0.0,
            False,
            attn_mask=group.mask,
            scale=scale,
        )
        sums[0][entry].add(group.first, for_query.flatten(1, 2))
        for total, parts in ((sums[1][entry], for_key), (sums[2][entry], for_value)):
            for block in range(group.blocks):  # blocks share keys, so they add one by one
                total.add(group.low + block * group.rows, parts[:, block])
    for total in (*sums[0], *sums[1], *sums[2]):
        total.finish()
    dtype = query.dtype
    return grads[0].to(dtype), grads[1].to(dtype), grads[2].to(dtype)


@banded_backward.register_fake
def _(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    start: Tensor,
    stop: Tensor,
    line: Tensor | None,
    out: Tensor,
    log_total: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    contiguous = torch.contiguous_format
    return (
        torch.empty_like(query, memory_format=contiguous),
        torch.empty_like(key, memory_format=contiguous),
        torch.empty_like(value, memory_format=contiguous),
    )


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors, *output)
    ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(True)


def _differentiate(ctx: Any, grad: Tensor, _: Tensor) -> Any:
    return *banded_backward(grad, *ctx.saved_tensors, ctx.scale), None, None, None, None


banded.register_autograd(_differentiate, setup_context=_keep)


def _keep_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_twice(ctx: Any, *upstream: Tensor) -> Any:
    """The gradient of the gradient, by the plain formula."""
    grad, query, key, value, start, stop, line, _, _ = ctx.saved_tensors
    with torch.enable_grad():
        inputs = [x.detach().requires_grad_() for x in (grad, query, key, value)]
        grad, query, key, value = inputs
        keys = torch.arange(key.shape[-2], device=key.device)
        allowed = (keys >= start.unsqueeze(-1)) & (keys < stop.unsqueeze(-1))
        mask = torch.where(allowed, 0.0, -torch.inf).to(query.dtype)
        if line is not None:
            mask = mask + line.unfold(-1, key.shape[-2], 1).flip(-2)
        plain = plain_attention(query, key, value, mask, False, ctx.scale)
        firsts = torch.autograd.grad(plain, inputs[1:], grad, create_graph=True)
        grads = torch.autograd.grad(firsts, inputs, upstream, allow_unused=True)
    return *grads, None, None, None, None, None, None


banded_backward.register_autograd(_differentiate_twice, setup_context=_keep_backward)


def _total_dtype(query: Tensor) -> torch.dtype:
    return torch.float64 if query.dtype == torch.float64 else torch.float32
