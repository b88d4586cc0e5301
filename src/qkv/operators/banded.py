"""Dot products where each query sees one run of keys: only the keys that count are touched.

Window, Blocks, Dilated, Causal and their ``&`` with each other and with Lengths leave each query
one run of keys. Queries are taken in blocks; a block meets only the keys between the first start
and the last stop of its runs, in one call of PyTorch's fused kernel, forwards and backwards.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv import cost
from qkv.mask import Runs
from qkv.operators.base import Cost, Offer, Result
from qkv.operators.flash import FLASH, FLASH_BACKWARD, four_axes, plain_attention
from qkv.problem import Problem
from qkv.similarity import DotForm
from qkv.similarity.base import may_be_dot

#: Answers (b, h, n, d_v) and log totals (b, h, n).
Answer: TypeAlias = tuple[Tensor, Tensor]

#: Queries in a block: fewer waste fewer keys at the edges, more make larger products.
BLOCK = 256
#: Blocks that go through the kernel at once; on the way back each holds its own keys' gradients.
MOST_BLOCKS = 16


def refusal(problem: Problem) -> str | None:
    """Why the kernel that takes slices of keys cannot serve, as far as sizes and types tell."""
    if problem.mask is None or not problem.mask.per_query:
        return "all queries may see the same keys"
    if not may_be_dot(problem.similarity):
        return f"{type(problem.similarity).__name__} is not a dot product"
    if problem.position_bias is not None:
        return "blocks of queries know no positions"
    if problem.dropout is not None:
        return "PyTorch's kernel knows no dropout"
    if problem.pairs == 0:
        return "there is nothing to compare"
    if FLASH is None or problem.query.device.type not in ("cpu", "meta"):
        return "the kernel that takes slices of keys runs on CPUs only"
    if problem.wants_total and problem.needs_grad:
        return "PyTorch's kernel gives its total no gradient"
    return None


def offer(problem: Problem) -> Offer | str:
    """Serve dot products on CPUs under masks that leave each query one run of keys."""
    assert problem.mask is not None
    runs = problem.mask.runs(problem.tile(0, problem.n))
    if runs is None:
        return "the mask leaves some queries more than one run of keys"
    form = problem.similarity.as_dot(problem.query, problem.key)
    if isinstance(form, str):
        return form
    if form.offset is not None:
        return "a masked key would move the centre from which distances are measured"
    return Offer(run=lambda: answer(problem, form, runs), cost=lambda: _cost(problem, runs))


def estimate(problem: Problem) -> float:
    """Seconds: the pairs that count, and a call of the kernel for some blocks at a time."""
    if problem.mask is None:
        return math.inf
    share = min(1.0, problem.mask.share(problem.n, problem.m) + BLOCK / max(1, problem.m))
    calls = 2 + math.ceil(problem.n / BLOCK / MOST_BLOCKS)
    return (
        calls * cost.seconds(problem, "tile", "any")
        + cost.seconds(problem, "sdpa", "dot", share)
        + cost.seconds(problem, "mask", "any", share)
    )


def _cost(problem: Problem, runs: Runs) -> Cost:
    share = 1.0 if problem.query.device.type == "meta" else runs.share(problem.m)
    reason = f"{share:.2%} of the pairs count, and only they are touched"
    return Cost(int(problem.flops * share), 4 * BLOCK * problem.m, reason)


def answer(problem: Problem, form: DotForm, runs: Runs) -> Result:
    """softmax(scale · query keyᵀ) value over each query's run of keys."""
    d_v = problem.value.shape[-1]
    size = max(form.query.shape[-1], d_v)
    query, key, value = (
        four_axes(x.to(form.query.dtype), problem.batch, size)
        for x in (form.query, form.key, problem.value)
    )
    runs = runs_of_heads(runs, problem.batch, query)

    def attend(query: Tensor, key: Tensor, value: Tensor, start: Tensor, stop: Tensor) -> Answer:
        out, log_total = banded(query, key, value, start, stop, form.scale)
        return out, log_total

    out, log_total = by_residue(query, key, value, runs, attend)
    out = out.reshape(*problem.batch, problem.n, size)[..., :d_v].to(problem.value.dtype)
    return out, log_total.reshape(*problem.batch, problem.n)


def runs_of_heads(runs: Runs, batch: tuple[int, ...], query: Tensor) -> Runs:
    """Runs (…, n) as (entries, heads, n), to match a query of four axes; (1, 1, n) if all alike."""
    entries, heads, n = query.shape[:3]
    start, stop = (
        x.expand(*batch, n).reshape(entries, heads, n) if x.ndim > 1 else x.reshape(1, 1, n)
        for x in (runs.start, runs.stop)
    )
    return Runs(start, stop, runs.stride)


def by_residue(
    query: Tensor, key: Tensor, value: Tensor, runs: Runs, attend: Callable[..., Answer]
) -> Answer:
    """attend(query, key, value, start, stop) for runs of any stride.

    Keys `stride` apart become neighbours: one sequence, and one head more, for each residue.
    """
    stride, n, m = runs.stride, query.shape[-2], key.shape[-2]
    if stride == 1:
        return attend(query, key, value, runs.start, runs.stop)
    # A query's run starts at its own residue; queries in front make query i's residue i % stride.
    front = (m - n) % stride
    query = F.pad(query, (0, 0, front, -(n + front) % stride))
    key, value = (F.pad(x, (0, 0, 0, -m % stride)) for x in (key, value))
    start, stop = (F.pad(x, (front, -(n + front) % stride)) for x in (runs.start, runs.stop))

    def fold(x: Tensor) -> Tensor:  # (b, h, t * stride, d) -> (b, h * stride, t, d)
        steps = x.reshape(*x.shape[:2], -1, stride, x.shape[-1])
        return steps.transpose(-2, -3).flatten(1, 2)

    def fold_rows(x: Tensor) -> Tensor:  # (b, h, t * stride) -> (b, h * stride, t)
        return fold(x.unsqueeze(-1).expand(-1, heads, -1, -1)).squeeze(-1)

    heads = query.shape[1]
    residue = torch.arange(stride, device=query.device).repeat(heads).unsqueeze(-1)
    # Keys residue + t * stride below stop: t < (stop - residue) / stride, rounded up.
    first = (fold_rows(start) - residue) // stride
    last = -((residue - fold_rows(stop)) // stride)
    last = torch.minimum(last, -((residue - m) // stride))  # no padded key
    out, log_total = attend(fold(query), fold(key), fold(value), first, last)

    def unfold(x: Tensor) -> Tensor:  # (b, h * stride, t, d) -> (b, h, n, d)
        steps = x.reshape(x.shape[0], heads, stride, *x.shape[2:])
        whole = steps.transpose(-2, -3).flatten(-3, -2)
        return whole[..., front : front + n, :]

    return unfold(out), unfold(log_total.unsqueeze(-1)).squeeze(-1)


@torch.library.custom_op("qkv::banded", mutates_args=())
def banded(
    query: Tensor, key: Tensor, value: Tensor, start: Tensor, stop: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """Answers (b, h, n, d) and log totals (b, h, n) over the keys start ≤ j < stop."""
    assert FLASH is not None
    out = torch.zeros_like(query, memory_format=torch.contiguous_format)
    log_total = query.new_full(query.shape[:-1], -torch.inf, dtype=_total_dtype(query))
    for entry, group in _groups(key.shape[-2], start, stop, query):
        found, totals = FLASH(
            group.of_queries(query[entry]),
            group.of_keys(key[entry]),
            group.of_keys(value[entry]),
            0.0,
            False,
            attn_mask=group.mask,
            scale=scale,
        )
        group.of_queries(out[entry]).copy_(found)
        if group.empty is not None:  # the kernel gives an empty row the total exp(0)
            totals = totals.masked_fill(group.empty, -torch.inf)
        group.of_queries(log_total[entry].unsqueeze(-1)).copy_(totals.unsqueeze(-1))
    return out, log_total


@banded.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, start: Tensor, stop: Tensor, scale: float
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
    out: Tensor,
    log_total: Tensor,
    scale: float,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of query, key and value."""
    assert FLASH_BACKWARD is not None
    wide = _total_dtype(query)  # many blocks add to one key
    grads = [torch.zeros(x.shape, dtype=wide) for x in (query, key, value)]
    for entry, group in _groups(key.shape[-2], start, stop, query):
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
        group.of_queries(grads[0][entry]).copy_(for_query)
        for total, parts in ((grads[1], for_key), (grads[2], for_value)):
            for block in range(group.blocks):  # blocks share keys, so they add one by one
                first = group.low + block * group.rows
                total[entry, :, first : first + group.width] += parts[:, block]
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
    return *banded_backward(grad, *ctx.saved_tensors, ctx.scale), None, None, None


banded.register_autograd(_differentiate, setup_context=_keep)


def _keep_backward(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    *tensors, ctx.scale = inputs
    ctx.save_for_backward(*tensors)


def _differentiate_twice(ctx: Any, *upstream: Tensor) -> Any:
    """The gradient of the gradient, by the plain formula."""
    grad, query, key, value, start, stop, _, _ = ctx.saved_tensors
    with torch.enable_grad():
        inputs = [x.detach().requires_grad_() for x in (grad, query, key, value)]
        grad, query, key, value = inputs
        keys = torch.arange(key.shape[-2], device=key.device)
        allowed = (keys >= start.unsqueeze(-1)) & (keys < stop.unsqueeze(-1))
        mask = torch.where(allowed, 0.0, -torch.inf).to(query.dtype)
        plain = plain_attention(query, key, value, mask, False, ctx.scale)
        firsts = torch.autograd.grad(plain, inputs[1:], grad, create_graph=True)
        found = torch.autograd.grad(firsts, inputs, upstream, allow_unused=True)
    return *found, None, None, None, None, None


banded_backward.register_autograd(_differentiate_twice, setup_context=_keep_backward)


def _total_dtype(query: Tensor) -> torch.dtype:
    return torch.float64 if query.dtype == torch.float64 else torch.float32


class _Group(NamedTuple):
    """Neighbouring blocks of queries whose runs look alike, each moved along by its rows.

    They go through the kernel together, their keys a view in which the blocks overlap.
    """

    first: int  # the first query
    rows: int  # queries in a block
    blocks: int
    low: int  # the first key of the first block
    width: int  # keys that a block meets
    mask: Tensor | None
    empty: Tensor | None  # queries that see nothing

    def of_queries(self, x: Tensor) -> Tensor:
        """(h, n, d) -> (h, blocks, rows, d)."""
        mine = x[:, self.first : self.first + self.rows * self.blocks]
        return mine.view(len(x), self.blocks, self.rows, x.shape[-1])

    def of_keys(self, x: Tensor) -> Tensor:
        """(h, m, d) -> (h, blocks, width, d)."""
        last = self.low + self.width + self.rows * (self.blocks - 1)
        overlapping: Tensor = x[:, self.low : last].unfold(1, self.width, self.rows)
        return overlapping.mT


def _groups(m: int, start: Tensor, stop: Tensor, like: Tensor) -> Iterator[tuple[int, _Group]]:
    """The groups of every batch entry."""
    start, stop = start.clamp(0, m), stop.clamp(0, m)
    shared = list(_groups_of(start[0], stop[0], like.dtype)) if len(start) == 1 else None
    for entry in range(like.shape[0]):
        groups = shared if shared is not None else _groups_of(start[entry], stop[entry], like.dtype)
        for group in groups:
            yield entry, group


def _groups_of(start: Tensor, stop: Tensor, dtype: torch.dtype) -> Iterator[_Group]:
    """Groups of blocks from the runs (h, n) of one batch entry."""
    edges = _edges(start, stop)
    index = 0
    while index + 1 < len(edges):
        first, last = edges[index : index + 2]
        rows, count = last - first, 1
        if rows > BLOCK:
            yield from _groups_between(start, stop, first, last, dtype)
        else:  # sentences of one length that follow each other go through the kernel together
            while count < MOST_BLOCKS and _moved_along(start, stop, edges, index + count):
                count += 1
            yield from _group(start, stop, first, rows, count, dtype)
        index += count


def _edges(start: Tensor, stop: Tensor) -> list[int]:
    """Where queries can be cut apart, 0 and n among them, because no key is seen on both sides."""
    n = start.shape[-1]
    seen = stop.amax(0).cummax(0).values[:-1]  # by the queries so far
    cuts = (start.amin(0)[1:] >= seen).nonzero().flatten() + 1
    return [0, *cuts.tolist(), n]


def _moved_along(start: Tensor, stop: Tensor, edges: list[int], index: int) -> bool:
    """Whether the runs between two edges are those between the edges before, moved along."""
    if index + 1 >= len(edges):
        return False
    before, first, last = edges[index - 1 : index + 2]
    rows = last - first
    return first - before == rows and all(
        torch.equal(x[:, first:last], x[:, before:first] + rows) for x in (start, stop)
    )


def _groups_between(
    start: Tensor, stop: Tensor, first: int, last: int, dtype: torch.dtype
) -> Iterator[_Group]:
    """Groups of blocks for the queries `first` to `last`."""
    lows, highs, steady = _block_bounds(start[:, first:last], stop[:, first:last])
    block = 0
    while block < len(lows):
        count = 1
        while count < MOST_BLOCKS and block + count < len(lows) and steady[block + count]:
            count += 1
        if lows[block] < highs[block]:
            here = first + block * BLOCK
            yield from _group(start, stop, here, min(BLOCK, last - here), count, dtype)
        block += count


def _group(
    start: Tensor, stop: Tensor, first: int, rows: int, count: int, dtype: torch.dtype
) -> Iterator[_Group]:
    """One group, or none where its queries see nothing."""
    own = slice(first, first + rows)
    low, high = int(start[:, own].min()), int(stop[:, own].max())
    if low < high:
        mask, empty = _kernel_mask(start[:, own] - low, stop[:, own] - low, high - low, dtype)
        yield _Group(first, rows, count, low, high - low, mask, empty)


def _block_bounds(start: Tensor, stop: Tensor) -> tuple[list[int], list[int], list[bool]]:
    """Of each block: its first key, its last key, and whether it is its neighbour moved along."""
    h, n = start.shape
    missing = -n % BLOCK
    # The last block may be short; it is filled up with its last run, and stands alone.
    starts, stops = (
        torch.cat([x, x[:, -1:].expand(h, missing)], dim=-1).reshape(h, -1, BLOCK)
        for x in (start, stop)
    )  # (h, blocks, BLOCK)
    lows, highs = starts.amin(dim=(0, 2)), stops.amax(dim=(0, 2))
    moved = torch.zeros_like(lows, dtype=torch.bool)
    moved[1:] = (starts[:, 1:] - starts[:, :-1] == BLOCK).all(2).all(0) & (
        stops[:, 1:] - stops[:, :-1] == BLOCK
    ).all(2).all(0)
    if missing:
        moved[-1] = False
    return lows.tolist(), highs.tolist(), moved.tolist()


def _kernel_mask(
    start: Tensor, stop: Tensor, width: int, dtype: torch.dtype
) -> tuple[Tensor | None, Tensor | None]:
    """The kernel's mask (h, 1, rows, width) and the empty rows (h, 1, rows), if there are any."""
    keys = torch.arange(width, device=start.device)
    start, stop = start.unsqueeze(1), stop.unsqueeze(1)
    allowed = (keys >= start.unsqueeze(-1)) & (keys < stop.unsqueeze(-1))
    if bool(allowed.all()):
        return None, None
    empty = stop <= start
    mask = torch.where(allowed, 0.0, -torch.inf).to(dtype)
    return mask, empty if bool(empty.any()) else None
