"""What NaN and infinity mean, in a key that is masked and in one that is attended to.

A masked key has no influence, not even through NaN. Zero times NaN is NaN, forwards and backwards,
so weighting a masked key by 0 is not enough: under a mask, keys and values that hold NaN or inf are
replaced by 0 before any operator sees them, and the queries that *may* attend to one of them are
tainted.

What is attended to shows. Answers that hold NaN or inf, those of tainted queries too, are computed
once more, by `operators/arithmetic.py`, so that infinity means the same whichever operator answers.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.mask import Runs
from qkv.memory import TILE_BYTES
from qkv.operators import arithmetic
from qkv.operators.base import Result
from qkv.problem import Problem
from qkv.tracing import can_read_values, is_finite, sizes_are_known


class Quarantined(NamedTuple):
    problem: Problem
    tainted: Tensor | None  # (..., n): queries that may attend to NaN or inf; None: none does

    def mark(self, answer: Tensor) -> Tensor:
        """Let NaN show in the answers (…, n, …) of tainted queries, and in their gradients."""
        if self.tainted is None:
            return answer
        return answer * torch.where(self.tainted, torch.nan, 1.0).unsqueeze(-1).to(answer.dtype)


def settled(problem: Problem, result: Result) -> Result:
    """An operator's result, in which what is not finite is that of the formula.

    Gradients stay what the operator makes them, NaN for the most part.
    """
    answer, log_total = result
    # On other devices a look would wait for all that is still under way there.
    if not (answer.is_cpu and problem.is_eager):
        return result
    if is_finite(answer) and (not problem.wants_total or _has_every_total(problem, result)):
        return result
    exact, exact_total = arithmetic.answer(problem)
    answer = _Replaced.apply(answer, answer.isfinite(), exact)  # type: ignore[no-untyped-call]
    if log_total is not None and exact_total is not None:
        kept = log_total.isfinite() & (log_total != 0)
        log_total = _Replaced.apply(log_total, kept, exact_total)  # type: ignore[no-untyped-call]
    return answer, log_total


def settled_weights(problem: Problem, weights: Tensor, start: int, stop: int) -> Tensor:
    """Likewise the weights (…, stop − start, m) of some queries."""
    if not (weights.is_cpu and problem.is_eager) or is_finite(weights):
        return weights
    exact, _ = arithmetic.weights(problem, start, stop)
    replaced: Tensor = _Replaced.apply(weights, weights.isfinite(), exact.weights)  # type: ignore[no-untyped-call]
    return replaced


def _has_every_total(problem: Problem, result: Result) -> bool:
    """Whether the totals of finite answers are those of the formula."""
    answer, log_total = result
    assert log_total is not None, "every operator gives the total where it is asked for"
    if answer.shape[-1] == 0 and not is_finite(log_total):
        return False  # without values only the total shows what is not finite
    # PyTorch's kernel gives a query whose scores are all −inf the total exp(0).
    return not bool((log_total == 0).any()) or is_finite(problem.query, problem.key)


class _Replaced(torch.autograd.Function):
    """Numbers, with others in place of those that are not kept; the gradient passes."""

    @staticmethod
    def forward(ctx: Any, numbers: Tensor, kept: Tensor, others: Tensor) -> Tensor:
        return torch.where(kept, numbers, others.to(numbers.dtype))

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        return grad, None, None


def quarantine(problem: Problem) -> Quarantined:
    """The same problem with keys and values that no mask can leak."""
    mask = problem.mask
    if mask is None:
        return Quarantined(problem, None)
    key, value = problem.key, problem.value
    looking = can_read_values(key, value)
    tainted = None
    if looking and not is_finite(problem.query):
        problem, tainted = _without_bad_queries(problem)
    if looking and is_finite(key, value):
        return Quarantined(problem, tainted)
    visible = mask.visible_keys(problem.tile(0, problem.n))  # (..., 1, m)
    if visible is not None and not (looking and bool(visible.all())):
        key, value = torch.where(visible.mT, key, 0.0), torch.where(visible.mT, value, 0.0)
        problem = problem._replace(key=key, value=value)
    if not mask.per_query or (looking and is_finite(key, value)):
        return Quarantined(problem, tainted)
    bad = ~(key.isfinite().all(-1) & value.isfinite().all(-1))  # (..., m)
    problem = problem._replace(
        key=key.nan_to_num(0.0, 0.0, 0.0), value=value.nan_to_num(0.0, 0.0, 0.0)
    )
    reached = _may_reach(problem, bad)
    return Quarantined(problem, reached if tainted is None else reached | tainted)


def _without_bad_queries(problem: Problem) -> tuple[Problem, Tensor]:
    """The problem with 0 in queries that hold NaN or inf, and which of them see a key, (…, n)."""
    bad = ~problem.query.isfinite().all(-1)
    anything = torch.ones(*problem.batch, problem.m, dtype=torch.bool, device=bad.device)
    problem = problem._replace(query=problem.query.nan_to_num(0.0, 0.0, 0.0))
    return problem, bad & _may_reach(problem, anything)


def _may_reach(problem: Problem, bad: Tensor) -> Tensor:
    """Whether each query may attend to a bad key, (…, n), a tile of queries at a time."""
    assert problem.mask is not None
    runs = problem.mask.as_runs(problem.tile(0, problem.n))
    if runs is not None and runs.stride == 1:
        return _within_runs(bad, runs)
    if not sizes_are_known(problem.n, bad.numel()):  # all at once, as operators do there
        return (problem.mask.allowed(problem.tile(0, problem.n)) & bad.unsqueeze(-2)).any(-1)
    rows = max(1, TILE_BYTES // max(1, bad.numel()))
    bad = bad.unsqueeze(-2)  # (..., 1, m)
    reach = [
        (problem.mask.allowed(problem.tile(start, min(start + rows, problem.n))) & bad).any(-1)
        for start in range(0, problem.n, rows)
    ]
    if not reach:
        return bad.any(-1).expand(*bad.shape[:-2], 0)
    return torch.cat(reach, dim=-1)


def _within_runs(bad: Tensor, runs: Runs) -> Tensor:
    """Whether each run start ≤ j < stop holds a bad key, (…, n): by counting, without pairs."""
    count = F.pad(bad.cumsum(-1), (1, 0))  # (..., m + 1): bad keys before each
    start, stop = (x.clamp(0, bad.shape[-1]) for x in (runs.start, runs.stop))
    if start.ndim == stop.ndim == 1:  # the same for all entries
        return count[..., stop] > count[..., start]
    batch = torch.broadcast_shapes(bad.shape[:-1], start.shape[:-1], stop.shape[:-1])
    count = count.expand(*batch, count.shape[-1])
    start, stop = (x.expand(*batch, x.shape[-1]) for x in (start, stop))
    return count.gather(-1, stop) > count.gather(-1, start)
