"""The readable reference: every score at once. The specification of all other operators."""

from __future__ import annotations

from torch import Tensor

from qkv.memory import budget, readable
from qkv.normalize import Weights, normalize
from qkv.operators.base import Cost, Offer, Result
from qkv.problem import Problem
from qkv.similarity.base import widen


def offer(problem: Problem) -> Offer | str:
    """Dense serves everything that fits into memory."""
    size = bytes_needed(problem)
    limit = budget(problem.query.device)
    if size > limit:
        return f"it would hold {readable(size)} at once, above the budget of {readable(limit)}"
    return Offer(
        run=lambda: answer(problem),
        cost=lambda: Cost(
            problem.flops, size, f"all {problem.pairs:,} scores fit into {readable(size)}"
        ),
    )


def bytes_needed(problem: Problem) -> int:
    """The block of scores with its hidden axis, the scores themselves and the weights."""
    itemsize = max(4, problem.query.element_size())
    return problem.pairs * (problem.similarity.pair_width(problem.dim) + 2) * itemsize


def answer(problem: Problem) -> Result:
    """Σ α(q, kᵢ) vᵢ, Eq. 1."""
    query, key = problem.similarity.prepare(problem.query, problem.key)
    log_scores = problem.similarity.log_score(query, key)
    return pool(problem, log_scores, problem.value, problem.bias)


def pool(
    problem: Problem, log_scores: Tensor, value: Tensor, bias: Tensor | None, start: int = 0
) -> tuple[Tensor, Tensor]:
    """From the scores and bias (…, rows, m) of the queries from `start` on to their answers."""
    weights, log_total = weigh(problem, log_scores, bias, start)
    if problem.dropout is not None:
        weights = problem.dropout.apply(weights, start)
    pooled = (weights @ widen(value)).to(value.dtype)  # (..., rows, d_v)
    rows = log_scores.shape[-2]
    return (
        pooled.expand(*problem.batch, rows, pooled.shape[-1]),
        log_total.expand(*problem.batch, rows),
    )


def weigh(problem: Problem, log_scores: Tensor, bias: Tensor | None, start: int = 0) -> Weights:
    """From the scores and bias (…, rows, m) of the queries from `start` on to their weights."""
    return normalize(*admit(problem, log_scores, bias, start))


def admit(
    problem: Problem, log_scores: Tensor, bias: Tensor | None, start: int = 0
) -> tuple[Tensor, Tensor | None, bool]:
    """What `normalize` asks for: biased scores, who may attend, whether a row may be empty."""
    allowed = None
    if bias is not None:
        log_scores = log_scores + bias.to(log_scores.dtype)
    if problem.mask is not None:
        tile = problem.tile(start, start + log_scores.shape[-2])
        allowed = problem.mask.within(None, tile, log_scores)
    return log_scores, allowed, allowed is not None or problem.similarity.may_vanish
