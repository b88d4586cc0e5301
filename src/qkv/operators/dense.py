"""The readable reference: every score at once. The specification of all other operators."""

from __future__ import annotations

from torch import Tensor

from qkv import cost
from qkv.memory import budget, readable
from qkv.normalize import Weights, normalize, softmax
from qkv.operators import plain
from qkv.operators.base import Cost, Result
from qkv.problem import Problem
from qkv.similarity.base import product, widen
from qkv.tracing import is_finite, sizes_are_known

#: Preferred up to so much at once, whatever the budget.
MOST_BYTES = 64 * 2**20


def refusal(problem: Problem) -> str | None:
    """Nothing is refused but what does not fit into memory."""
    size, limit = bytes_needed(problem), budget(problem.query.device)
    if sizes_are_known(size) and size > limit:
        return f"it would hold {readable(size)} at once, above the budget of {readable(limit)}"
    return None


def offer(problem: Problem) -> Cost:
    """All pairs at once."""
    reason = f"all {problem.pairs:,} scores fit into {readable(bytes_needed(problem))}"
    return Cost(problem.flops, bytes_held(problem), reason)


def estimate(problem: Problem) -> float | str:
    """Seconds, while the scores stay within a fixed bound, so that memory is linear."""
    size = bytes_needed(problem)
    if size > MOST_BYTES:
        return f"would hold more than {readable(MOST_BYTES)} at once, and memory is to stay linear"
    return seconds(problem)


def seconds(problem: Problem, reused: bool = False) -> float:
    """The time of the formula, with what masks and dropout add to it; memory may be reused."""
    time = cost.seconds(problem, "dense", reused=reused)
    if problem.mask is not None:
        ranks = problem.mask.needs_scores
        time += cost.seconds(problem, *(("rank", "any") if ranks else ("mask", "dense")))
    if problem.position_bias is not None:
        time += cost.seconds(problem, "mask", "dense")
    if problem.wants_total:  # which the formula alone gives
        time += cost.seconds(problem, "total", "any")
    if problem.dropout is not None:
        time += cost.seconds(problem, "dropout", "any")
    return time


def bytes_needed(problem: Problem) -> int:
    """The block of scores with its hidden axis, the scores themselves and the weights."""
    itemsize = max(4, problem.query.element_size())
    return problem.pairs * (problem.similarity.pair_width(problem.dim) + 2) * itemsize


def leakproof(problem: Problem) -> Result | str:
    """The answer by hand, if what is masked holds neither NaN nor inf."""
    if not plain.serves(problem):
        return "torch's own formula lets NaN through"
    result = plain.answer(problem)
    # A value that is not finite shows in every answer, since 0 · NaN is NaN. Tokens may show in
    # gradients alone, if they have any.
    pulls = result.requires_grad and not problem.similarity.has_steps
    shown = (result, problem.key, problem.query) if pulls else (result,)
    return (result, None) if is_finite(*shown) else "something holds NaN or inf"


def bytes_held(problem: Problem) -> int:
    """What is held at the worst moment, in blocks as large as the scores; counted by measuring.

    tests/test_plan_memory.py compares it with the memory that is taken.
    """
    width, both = problem.similarity.pair_width(problem.dim), problem.needs_grad
    family = problem.similarity.family
    if family == "dot" and plain.serves(problem):  # in place, differentiated by hand
        blocks = 2.0 if both else 1.0
    elif not both:
        blocks = width + 2.0
    elif problem.similarity.has_steps or family == "equal":
        blocks = 3.0
    else:
        blocks = max(8.0, 3.0 * width + 2.0)
    if problem.mask is not None:
        blocks += 4.5 if problem.mask.needs_scores else 1.5
    if problem.adds_to_scores:
        blocks += 3.0
    if problem.dropout is not None:
        blocks += 8.0
    return int(blocks * problem.pairs * max(4, problem.query.element_size()))


def answer(problem: Problem) -> Result:
    """Σ α(q, kᵢ) vᵢ, Eq. 1: by hand where that may be, else by the formula below."""
    if plain.serves(problem):
        result = plain.answer(problem)
        # There −inf is added to hide a score. If that is infinite, the formula below hides it.
        # Without gradients the answer is looked at by whoever asks.
        if problem.mask is None or not result.requires_grad or is_finite(result):
            return result, None
    query, key = problem.similarity.prepare(problem.query, problem.key)
    log_scores = problem.similarity.log_score(query, key)
    return pool(problem, log_scores, problem.value, problem.bias)


def pool(
    problem: Problem, log_scores: Tensor, value: Tensor, bias: Tensor | None, start: int = 0
) -> Result:
    """From the scores and bias (…, rows, m) of the queries from `start` on to their answers."""
    log_total = None
    if problem.wants_total:
        weights, log_total = weigh(problem, log_scores, bias, start)
    else:  # the total would cost as much again
        weights = softmax(*admit(problem, log_scores, bias, start))
    if problem.dropout is not None:
        weights = problem.dropout.apply(weights, start)
    pooled = product(weights, widen(value)).to(value.dtype)  # (..., rows, d_v)
    rows = log_scores.shape[-2]
    pooled = pooled.expand(*problem.batch, rows, pooled.shape[-1])
    return pooled, None if log_total is None else log_total.expand(*problem.batch, rows)


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
    tile = problem.tile(start, start + log_scores.shape[-2])
    if problem.position_bias is not None:
        log_scores = log_scores + problem.position_bias.scores(tile).to(log_scores.dtype)
    if problem.mask is not None:
        allowed = problem.mask.allowed_by_score(None, tile, log_scores)
    return log_scores, allowed, allowed is not None or problem.similarity.may_vanish
