"""The compiled loops as torch operators: who equals whom, sums over groups, and rows of groups.

Sums over groups and rows of groups are each other's derivative, so any order is at hand.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qkv.jit.arguments import NAMES
from qkv.operators.lookup import kernels

#: Queries that a thread looks up at a time.
_AT_ONCE = 4096

# Not `torch.library.custom_op`: at its first call that imports torch._dynamo, a second's work.
torch.library.define(
    "qkv::lookup_match", "(Tensor query, Tensor key, Tensor? allowed) -> (Tensor, Tensor, Tensor)"
)
torch.library.define("qkv::lookup_sum", "(Tensor rows, Tensor group, SymInt groups) -> Tensor")
torch.library.define("qkv::lookup_take", "(Tensor table, Tensor group) -> Tensor")


def failure(dtype: torch.dtype) -> str | None:
    """Why there is no machine code for this type, if it was tried in vain."""
    for kernel in (kernels.group_keys, kernels.find_queries, kernels.add_rows):
        reason = kernel.failure(NAMES[dtype])
        if reason is not None:
            return reason
    return None


def _match(query: Tensor, key: Tensor, allowed: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """The groups of queries (e, n) and keys (e, m), and the size of each, (e, m).

    A query that no key equals has group m, one that NaN keeps unknown m + 1.
    """
    # -0.0 equals 0.0, so both are to have one hash.
    query, key = (query.detach() + 0.0).contiguous(), (key.detach() + 0.0).contiguous()
    entries, m = key.shape[:2]
    n = query.shape[1]
    slots = 2 << (max(1, m) - 1).bit_length()  # a power of 2, and at least 2m
    table = torch.full((entries, slots), -1, dtype=torch.int32)
    key_group = torch.empty((entries, m), dtype=torch.int64)
    count = torch.zeros((entries, m), dtype=torch.float64)
    seen = torch.zeros((entries, 2), dtype=torch.int64)
    limits = torch.empty(0, dtype=torch.bool) if allowed is None else allowed.reshape(-1)
    kernels.group_keys(key, limits, table, key_group, count, seen, count=entries)
    query_group = torch.empty((entries, n), dtype=torch.int64)
    kernels.find_queries(
        query, key, table, seen, query_group, count=entries * n, grain=min(_AT_ONCE, max(1, n))
    )
    return query_group, key_group, count


def _match_fake(query: Tensor, key: Tensor, allowed: Any) -> tuple[Tensor, Tensor, Tensor]:
    entries, m = key.shape[:2]
    return (
        key.new_empty((entries, query.shape[1]), dtype=torch.int64),
        key.new_empty((entries, m), dtype=torch.int64),
        key.new_empty((entries, m), dtype=torch.float64),
    )


def _sum(rows: Tensor, group: Tensor, groups: int) -> Tensor:
    """Σ of the rows (e, r, c) of each group, (e, groups, c), in float64: groups may be large."""
    entries, columns = rows.shape[0], rows.shape[2]
    total = torch.zeros((entries, groups, columns), dtype=torch.float64)
    strips = -(-columns // kernels.COLUMNS)
    kernels.add_rows(rows.contiguous(), group.contiguous(), total, count=entries * strips)
    return total


def _sum_fake(rows: Tensor, group: Tensor, groups: int) -> Tensor:
    return rows.new_empty((rows.shape[0], groups, rows.shape[2]), dtype=torch.float64)


def _take(table: Tensor, group: Tensor) -> Tensor:
    """The row of each group, (e, r, c), of a table (e, groups, c); 0 where it is negative."""
    entries, groups = table.shape[:2]
    first = torch.arange(0, entries * groups, max(1, groups))[:entries].unsqueeze(-1)
    places = (group.clamp(min=0) + first).flatten()
    rows = table.flatten(0, 1).index_select(0, places).view(*group.shape, table.shape[2])
    return rows.masked_fill_((group < 0).unsqueeze(-1), 0.0)


def _take_fake(table: Tensor, group: Tensor) -> Tensor:
    return table.new_empty((*group.shape, table.shape[2]))


for _name, _run, _fake in (
    ("match", _match, _match_fake),
    ("sum", _sum, _sum_fake),
    ("take", _take, _take_fake),
):
    torch.library.impl(f"qkv::lookup_{_name}", "cpu", _run)
    torch.library.register_fake(f"qkv::lookup_{_name}", _fake)

match = torch.ops.qkv.lookup_match.default
sum_of_groups = torch.ops.qkv.lookup_sum.default
take = torch.ops.qkv.lookup_take.default


def _keep_sum(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    rows, group, _ = inputs
    ctx.dtype = rows.dtype
    ctx.save_for_backward(group)


def _differentiate_sum(ctx: Any, grad: Tensor) -> Any:
    return take(grad, *ctx.saved_tensors).to(ctx.dtype), None, None


def _keep_take(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    table, group = inputs
    ctx.groups, ctx.dtype = table.shape[1], table.dtype
    ctx.save_for_backward(group)


def _differentiate_take(ctx: Any, grad: Tensor) -> Any:
    return sum_of_groups(grad, *ctx.saved_tensors, ctx.groups).to(ctx.dtype), None


torch.library.register_autograd("qkv::lookup_sum", _differentiate_sum, setup_context=_keep_sum)
torch.library.register_autograd("qkv::lookup_take", _differentiate_take, setup_context=_keep_take)
