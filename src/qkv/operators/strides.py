"""Runs of keys with a stride, as runs without: keys `stride` apart become neighbours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.mask import Runs

#: Answers (b, h, n, d_v) and log totals (b, h, n).
Answer: TypeAlias = tuple[Tensor, Tensor]


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
        steps = x.reshape(*x.shape[:2], x.shape[2] // stride, stride, x.shape[-1])
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
