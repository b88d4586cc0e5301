"""What is looked up, and how a problem gets there."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qkv import cost
from qkv.operators.base import Cost, Result
from qkv.operators.lookup import ops
from qkv.problem import Problem
from qkv.similarity import Equal
from qkv.similarity.base import steps, widen
from qkv.tracing import in_forward_mode, in_transform, sizes_are_known


def refusal(problem: Problem) -> str | None:
    """Why nothing can be looked up, as far as sizes, types and masks tell."""
    if type(problem.similarity) is not Equal:
        return f"{type(problem.similarity).__name__} is not Equal"
    if problem.query.device.type not in ("cpu", "meta"):
        return "the loops are compiled for CPUs"
    if problem.dropout is not None:
        return "a hash look-up does not support dropout"
    if problem.mask is not None and (problem.mask.per_query or problem.mask.needs_scores):
        return f"a hash look-up needs all queries to see the same keys, unlike {problem.mask!r}"
    if problem.adds_to_scores:
        return "a hash look-up does not support biases"
    if problem.pairs * problem.dim * problem.value.shape[-1] == 0:
        return "there is nothing to compare"
    if sizes_are_known(problem.m) and problem.m >= 2**30:
        return "places of keys are kept in 32 bits"
    if in_transform() or in_forward_mode():
        return "not supported inside torch.func transforms"
    return None


def estimate(problem: Problem) -> float:
    """Seconds: linear in tokens."""
    return cost.seconds(problem, "lookup", "any")


def _failure(problem: Problem) -> str | None:
    """Why there are no loops for these types, if compiling them was tried in vain."""
    return ops.failure(widen(problem.query[..., :0, :]).dtype)


def offer(problem: Problem) -> Cost | str:
    """Linear in tokens."""
    failure = _failure(problem)
    if failure is not None:
        return failure
    entries, d_v = math.prod(problem.batch), problem.value.shape[-1]
    flops = entries * (problem.n + problem.m) * (4 * problem.dim + d_v)
    size = entries * (problem.m * (32 + 16 * d_v) + problem.n * (8 + 8 * d_v))
    size *= 2 if problem.needs_grad else 1
    return Cost(flops, size, "equal keys are found by their hash, each token visited once")


def answer(problem: Problem) -> Result | str:
    """The mean of the values of each group of equal keys, for the queries that equal them."""
    failure = _failure(problem)
    if failure is not None:
        return failure
    batch = problem.batch
    query, key = problem.similarity.prepare(problem.query, problem.key)
    allowed = None
    if problem.mask is not None:
        allowed = problem.mask.allowed(problem.tile(0, problem.n))  # (..., 1, m)
        allowed = _entries(allowed, batch).contiguous()
    with torch.no_grad():
        query_group, key_group, count = ops.match(
            _entries(query, batch), _entries(key, batch), allowed
        )
    # Divided by: 1 where there is nothing to divide, NaN where NaN is to show.
    special = torch.tensor([1.0, torch.nan], dtype=count.dtype, device=count.device)
    size = torch.cat([count.clamp(min=1), special.expand(count.shape[0], 2)], dim=-1)
    value = _entries(widen(problem.value), batch)
    total = ops.sum_of_groups(value, key_group, problem.m + 2)
    mean = total / steps(size, query, key).unsqueeze(-1)
    # Other keys weigh 0, which makes NaN of what is not finite, as in the formula.
    others_say = value.detach().sum(-2, keepdim=True) * 0
    means = (ops.take(mean, query_group) + others_say).to(problem.value.dtype)
    means = means.reshape(*batch, *means.shape[1:])
    if not problem.wants_total:
        return means, None
    log_total = size.gather(1, query_group).log()
    log_total = log_total.masked_fill(query_group == problem.m, -torch.inf).to(query.dtype)
    return means, log_total.reshape(*batch, problem.n)


def _entries(tensor: Tensor, batch: tuple[int, ...]) -> Tensor:
    """(…, rows, columns) -> (entries, rows, columns)."""
    whole = tensor.expand(*batch, *tensor.shape[-2:])
    return whole.reshape(math.prod(batch), *tensor.shape[-2:])
