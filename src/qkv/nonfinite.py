"""A masked key has no influence, not even through NaN.

Zero times NaN is NaN, forwards and backwards, so weighting a masked key by 0 is not enough. Under
a mask, keys and values that hold NaN or inf are replaced by 0 before any operator sees them, and
the queries that *may* attend to one of them get NaN as their answer, as does a query that holds NaN
or inf, unless it may attend to nothing: then it gets 0. What the formula says in place of that NaN,
`operators/arithmetic.py` finds out.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.mask import Runs
from qkv.memory import TILE_BYTES
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
