"""What is served over sorted keys, and how a problem gets there."""

from __future__ import annotations

import math

import numpy as np
import torch

from qkv import cost
from qkv.mask import ExceptSelf
from qkv.operators.base import Cost, Result
from qkv.operators.sorted.sorted_keys import Array, SortedKeys, WeightedMean, failure
from qkv.problem import Problem
from qkv.similarity.base import SortedForm
from qkv.tracing import can_read_values


def refusal(problem: Problem) -> str | None:
    """Why sorted keys do not support a problem, as far as sizes, types and masks tell."""
    form = problem.similarity.as_sorted(problem.key)
    if isinstance(form, str):
        return form
    if problem.key.shape[-1] != 1:
        return f"keys have {problem.key.shape[-1]} dimensions and cannot be sorted"
    if problem.query.device.type != "cpu":
        return "the kernels are compiled for CPUs"
    if problem.position_bias is not None:
        return "sums over sorted keys do not support position biases"
    if problem.mask is not None and not _leaves_one_out(problem):
        return "sums over sorted keys support no mask but ExceptSelf of as many queries as keys"
    if problem.dropout is not None:
        return "sums over sorted keys do not support dropout"
    if problem.needs_grad:
        return "no backward pass"
    if problem.pairs * problem.value.shape[-1] == 0:
        return "there is nothing to compare"
    return None


def _form(problem: Problem) -> SortedForm | str:
    """The kernel as sums over sorted keys take it, if these keys can be sorted."""
    form = problem.similarity.as_sorted(problem.key)
    if isinstance(form, str):
        return form
    reason = failure(form.kernel)
    if reason is not None:
        return reason
    tokens = (problem.query, problem.key, problem.value)
    if not can_read_values(*tokens):
        return "key values are unavailable while tracing"
    if not all(np.isfinite(tensor.detach().double().numpy()).all() for tensor in tokens):
        return "NaN or inf would contaminate the prefix sums"
    if problem.mask is not None and not torch.equal(problem.query, problem.key):
        return "under ExceptSelf the queries must be the keys themselves"
    return form


def estimate(problem: Problem) -> float:
    """Seconds: near-linear in tokens."""
    return cost.seconds(problem, "sorted", "any")


def _leaves_one_out(problem: Problem) -> bool:
    """Whether each query may see all keys but the one at its own position."""
    return isinstance(problem.mask, ExceptSelf) and problem.query.shape == problem.key.shape


def offer(problem: Problem) -> Cost | str:
    """Near-linear in tokens."""
    form = _form(problem)
    if isinstance(form, str):
        return form
    tokens = math.prod(problem.batch) * (problem.n + problem.m)
    columns = 1 + problem.value.shape[-1]
    flops = int(tokens * (math.log2(tokens + 1) + 40 * columns))
    d_v = problem.value.shape[-1]
    size = 8 * (problem.n * (4 + 2 * d_v) + problem.m * (8 + 4 * d_v))
    reason = "one-dimensional keys are sorted, and summed by cells in near-linear time"
    return Cost(flops, size, reason)


def answer(problem: Problem) -> Result | str:
    """Sort the keys of each batch entry and pool; float64 inside, whatever the type."""
    form = _form(problem)
    if isinstance(form, str):
        return form
    batch, d_v = problem.batch, problem.value.shape[-1]

    def entries(tensor: torch.Tensor) -> Array:
        whole = tensor.detach().expand(*batch, *tensor.shape[-2:]).reshape(-1, *tensor.shape[-2:])
        return np.asarray(whole.double().numpy())

    def pool(query: Array, key: Array, value: Array) -> WeightedMean:
        keys = SortedKeys(np.ascontiguousarray(key[:, 0]), value)
        if problem.mask is not None:
            return keys.pool_others(form.kernel, form.bandwidth)
        return keys.pool(np.ascontiguousarray(query[:, 0]), form.kernel, form.bandwidth)

    tokens = (entries(problem.query), entries(problem.key), entries(problem.value))
    said = [pool(query, key, value) for query, key, value in zip(*tokens, strict=True)]
    answer, log_total = (
        torch.from_numpy(part[0] if len(part) == 1 else np.stack(part))  # one need not be copied
        for part in zip(*said, strict=True)
    )
    wide = torch.promote_types(problem.query.dtype, torch.float32)
    return (
        answer.reshape(*batch, problem.n, d_v).to(problem.value.dtype),
        log_total.reshape(*batch, problem.n).to(wide),
    )
