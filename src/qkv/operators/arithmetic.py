"""The formula in IEEE arithmetic, number by number: what infinity means, written down.

It serves the queries whose answers hold NaN or inf, whichever operator gave them (`settled`). A
key that may not be attended to takes no part, whatever it holds. All others do: a score of −inf is
a weight of 0, scores of +inf have no weights (NaN), and 0 times infinity is NaN. A query whose
scores are all −inf finds nothing: its answer is 0 and its total −inf, so that any parts of the keys
merge to what all of them say.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from qkv.broadcast import query_rows
from qkv.memory import TILE_BYTES
from qkv.normalize import Weights, normalize
from qkv.operators.base import Result
from qkv.operators.dense import admit
from qkv.operators.tiles import rows_at_once, spans
from qkv.problem import Problem
from qkv.similarity.base import product, widen
from qkv.tracing import is_finite


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
    exact, exact_total = by_formula(problem)
    answer = _Replaced.apply(answer, answer.isfinite(), exact)  # type: ignore[no-untyped-call]
    if log_total is not None and exact_total is not None:
        kept = log_total.isfinite() & (log_total != 0)
        log_total = _Replaced.apply(log_total, kept, exact_total)  # type: ignore[no-untyped-call]
    return answer, log_total


def settled_weights(problem: Problem, weights: Tensor, start: int, stop: int) -> Tensor:
    """Likewise the weights (…, stop − start, m) of some queries."""
    if not (weights.is_cpu and problem.is_eager) or is_finite(weights):
        return weights
    exact, _ = weights_by_formula(problem, start, stop)
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


def by_formula(problem: Problem) -> Result:
    """Answers and log totals, a tile of queries at a time; nothing is differentiated."""
    width = 8 * (problem.similarity.pair_width(problem.dim) + 2)
    step = rows_at_once(TILE_BYTES, math.prod(problem.batch) * problem.m * width)
    tiles = [_tile(problem, *span) for span in spans(problem.n, step)]
    answers, totals = zip(*tiles, strict=True)
    return torch.cat(answers, dim=-2), torch.cat(totals, dim=-1)


def _tile(problem: Problem, start: int, stop: int) -> tuple[Tensor, Tensor]:
    weighed, allowed = weights_by_formula(problem, start, stop)
    pooled = _pool(weighed.weights, allowed, widen(problem.value))
    empty = (weighed.log_total == -torch.inf).unsqueeze(-1)
    pooled = pooled.masked_fill(empty & ~pooled.isnan(), 0.0).to(problem.value.dtype)
    rows = stop - start
    return (
        pooled.expand(*problem.batch, rows, pooled.shape[-1]),
        weighed.log_total.expand(*problem.batch, rows),
    )


@torch.no_grad()
def weights_by_formula(problem: Problem, start: int, stop: int) -> tuple[Weights, Tensor | None]:
    """The weights of the queries `start` to `stop`, and which keys they may attend to."""
    query, key = problem.similarity.prepare(problem.query, problem.key)
    log_scores = problem.similarity.log_score(query[..., start:stop, :], key)
    added = None if problem.bias is None else query_rows(problem.bias, start, stop)
    log_scores, allowed, _ = admit(problem, log_scores, added, start)
    weighed = normalize(log_scores, allowed, may_be_empty=True)
    if problem.dropout is not None:
        weighed = weighed._replace(weights=problem.dropout.apply(weighed.weights, start))
    return weighed, allowed


@torch.no_grad()
def _pool(weights: Tensor, allowed: Tensor | None, value: Tensor) -> Tensor:
    """Σ wᵢ vᵢ over the allowed keys alone: a product would multiply what is hidden by 0, too."""
    pooled = product(weights, torch.where(value.isfinite(), value, 0.0))
    seen = torch.ones_like(weights, dtype=torch.bool) if allowed is None else allowed

    def meets(pairs: Tensor, values: Tensor) -> Tensor:
        """Whether each query meets such a value in one of these pairs, (…, n, d_v)."""
        return product(pairs.to(weights.dtype), values.to(weights.dtype)) > 0

    weighs, nothing = seen & (weights > 0), seen & (weights == 0)
    rises, falls = meets(weighs, value == torch.inf), meets(weighs, value == -torch.inf)
    lost = meets(nothing, value.isinf()) | meets(seen, value.isnan()) | (rises & falls)
    pooled = pooled.masked_fill(rises, torch.inf).masked_fill(falls, -torch.inf)
    return torch.where(lost | weights.isnan().any(-1, keepdim=True), torch.nan, pooled)
