"""The reference formula in as few passes as torch can make of it: in place, differentiated by hand.

It serves where nobody traces, transforms or watches. What it keeps for the backward pass is one
block (n, m) of weights; second derivatives, and those of few pairs, take torch's own formula.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from qkv.mask import Hidden
from qkv.memory import keep_freed_pages
from qkv.problem import Problem
from qkv.similarity.base import DotForm, steps, widen

#: Up to so many pairs the formula itself is differentiated: a pass costs less than a call.
FEW_PAIRS = 2**14
#: The same for dot products, of which torch's own backward pass makes fewer calls.
FEW_DOT_PAIRS = 2**17

#: With fewer columns a product of matrices is the quicker one the other way round.
NARROW = 16

#: Up to so many scores a softmax in place is the slower one.
FEW_SCORES = 2**18


def serves(problem: Problem) -> bool:
    """Whether the answer alone is asked for, and may be computed by hand."""
    similarity = problem.similarity
    return (
        not problem.asked_again
        and problem.dropout is None
        and not problem.wants_total
        and problem.key.shape[-2] > 0
        and not (similarity.may_vanish and (problem.adds_to_scores or not similarity.nonnegative))
        and (problem.mask is None or not problem.mask.needs_scores)
        and problem.is_eager
    )


def answer(problem: Problem) -> Tensor:
    """Σ α(q, kᵢ) vᵢ, Eq. 1."""
    keep_freed_pages()
    similarity, hidden = problem.similarity, None
    if problem.mask is not None:
        hidden = problem.mask.hidden(problem.tile(0, problem.n)).spread(problem.batch)
    added = problem.adds_to_scores
    # A distance goes to `sdpa` where it is a dot product, and only there.
    may_be_dot = not added and not similarity.depends_on_spread
    form = similarity.as_dot(problem.query, problem.key) if may_be_dot else ""
    if isinstance(form, DotForm):
        result = _dot(problem, form, hidden)
    elif similarity.nonnegative and not added:
        result = _proportional(problem, hidden)
    else:
        scores = similarity.log_scores(problem.query, problem.key)
        if problem.bias is not None:
            scores = scores + problem.bias.to(scores.dtype)
        if problem.position_bias is not None:
            by_position = problem.position_bias.scores(problem.tile(0, problem.n))
            scores = scores + by_position.to(scores.dtype)
        result = _softmax(problem, scores, hidden)
    return result if result.dtype == problem.value.dtype else result.to(problem.value.dtype)


def _three_axes(tensor: Tensor, batch: tuple[int, ...]) -> Tensor:
    """(…, rows, columns) -> (entries, rows, columns), a view if it can be."""
    rows, columns = tensor.shape[-2:]
    if tensor.shape[:-2] != batch:
        tensor = tensor.expand(*batch, rows, columns)
    if len(batch) == 1:
        return tensor
    return tensor.reshape(math.prod(batch), rows, columns)


def _softmax(problem: Problem, scores: Tensor, hidden: Hidden | None) -> Tensor:
    """softmax(scores) value."""
    batch = problem.batch
    scores, value = _three_axes(scores, batch), _three_axes(widen(problem.value), batch)
    if hidden is not None:
        scores = scores + hidden.added(scores.dtype)
    return _as_asked(_weighed(scores, value, hidden), batch)


def _proportional(problem: Problem, hidden: Hidden | None) -> Tensor:
    """(scores / Σ scores) value."""
    similarity, batch = problem.similarity, problem.batch
    with torch.set_grad_enabled(torch.is_grad_enabled() and not similarity.has_steps):
        scores = similarity.score(*similarity.prepare(problem.query, problem.key))
    scores, value = _three_axes(scores, batch), _three_axes(widen(problem.value), batch)
    pooled: Tensor
    if not problem.needs_grad:
        pooled = _Proportional.run(scores, value, hidden)[0]
    elif similarity.has_steps:
        pooled = _steps(scores, value, hidden, problem)
    elif scores.numel() <= FEW_PAIRS:
        pooled = _Proportional.formula(scores, value, hidden)
    else:
        pooled = _Proportional.apply(scores, value, hidden)  # type: ignore[no-untyped-call]
    return _as_asked(pooled, batch)


def _as_asked(pooled: Tensor, batch: tuple[int, ...]) -> Tensor:
    if len(batch) == 1:
        return pooled
    return pooled.view(*batch, *pooled.shape[-2:])


def _dot(problem: Problem, form: DotForm, hidden: Hidden | None) -> Tensor:
    batch = problem.batch
    query, key, value = widen(form.query), widen(form.key), widen(problem.value)
    query, key = _three_axes(query, batch), _three_axes(key, batch)
    value = _three_axes(value, batch)
    differentiable = torch.is_grad_enabled() and (
        query.requires_grad or key.requires_grad or value.requires_grad
    )
    pooled: Tensor
    if not differentiable:
        pooled = torch.bmm(_dot_weights(query, key, form.scale, hidden), value)
    elif problem.pairs <= FEW_DOT_PAIRS:
        pooled = _Dot.formula(query, key, value, form.scale, hidden)
    else:
        pooled = _Dot.apply(query, key, value, form.scale, hidden)  # type: ignore[no-untyped-call]
    return _as_asked(pooled, batch)


def _dot_weights(query: Tensor, key: Tensor, scale: float, hidden: Hidden | None) -> Tensor:
    """softmax(scale · query keyᵀ), 0 in rows that are empty."""
    # What hides keys is added where the product is made, which costs next to nothing.
    if hidden is not None:
        scores = torch.baddbmm(hidden.added(query.dtype), query, key.mT, alpha=scale)
    elif scale == 1.0:
        scores = torch.bmm(query, key.mT)
    else:
        nothing = _nothing(query.dtype, query.device)
        scores = torch.baddbmm(nothing, query, key.mT, beta=0, alpha=scale)
    # A second block within the caches costs less than rows that overtake themselves.
    weights = torch.softmax(scores, -1, out=None if scores.numel() < FEW_SCORES else scores)
    if hidden is not None and hidden.queries is not None:
        weights.masked_fill_(hidden.queries, 0.0)
    return weights


@lru_cache(maxsize=16)
def _nothing(dtype: torch.dtype, device: torch.device) -> Tensor:
    """What a scaled product is added to, 0 times."""
    with torch.inference_mode(False):
        return torch.zeros(1, 1, 1, dtype=dtype, device=device)


def _pull_scores(weights: Tensor, value: Tensor, grad: Tensor) -> Tensor:
    """The gradient of the scores whose softmax is `weights`."""
    pull = torch.bmm(grad, value.mT)
    return torch._softmax_backward_data(pull, weights, -1, pull.dtype, grad_input=pull)


def _to_keys(pairs: Tensor, rows: Tensor, scale: float = 1.0) -> Tensor:
    """scale · pairsᵀ rows, (…, m, d): what each key gets of (…, n, m) times (…, n, d)."""
    if rows.shape[-2] == 1:  # an outer product, which is slow as a product of matrices
        return pairs.mT * (rows if scale == 1.0 else rows * scale)
    if rows.shape[-1] < NARROW:
        return torch.bmm((rows if scale == 1.0 else rows * scale).mT, pairs).mT
    if scale == 1.0:
        return torch.bmm(pairs.mT, rows)
    nothing = _nothing(pairs.dtype, pairs.device)
    return torch.baddbmm(nothing, pairs.mT, rows, beta=0, alpha=scale)


def _again(
    formula: Callable[..., Tensor],
    inputs: tuple[Tensor, ...],
    others: tuple[Any, ...],
    grad: Tensor,
) -> list[Tensor | None]:
    """The gradient by a formula that torch differentiates, to be differentiated once more."""
    wanted = [x for x in inputs if x.requires_grad]
    grads = iter(torch.autograd.grad(formula(*inputs, *others), wanted, grad, create_graph=True))
    return [next(grads) if x.requires_grad else None for x in inputs]


class _Dot(torch.autograd.Function):
    """softmax(scale · query keyᵀ) value."""

    @staticmethod
    def formula(
        query: Tensor, key: Tensor, value: Tensor, scale: float, hidden: Hidden | None
    ) -> Tensor:
        # Scaled before: the gradients of a scaled product would be scaled after, those of all keys.
        query = query if scale == 1.0 else query * scale
        if hidden is None:
            scores = torch.bmm(query, key.mT)
        else:
            scores = torch.baddbmm(hidden.added(query.dtype), query, key.mT)
        return _weighed(scores, value, hidden)

    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, scale: float, hidden: Hidden | None
    ) -> Tensor:
        weights = _dot_weights(query, key, scale, hidden)
        ctx.save_for_backward(query, key, value, weights)
        ctx.scale, ctx.hidden = scale, hidden
        return torch.bmm(weights, value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, key, value, weights = ctx.saved_tensors
        scale, hidden = ctx.scale, ctx.hidden
        if torch.is_grad_enabled():
            return *_again(_Dot.formula, (query, key, value), (scale, hidden), grad), None, None
        of_query, of_key, of_value, _, _ = ctx.needs_input_grad
        found_query = found_key = None
        if of_query or of_key:
            pull = _pull_scores(weights, value, grad)
            if of_query:
                nothing = _nothing(pull.dtype, pull.device)
                found_query = torch.baddbmm(nothing, pull, key, beta=0, alpha=scale)
            if of_key:
                found_key = _to_keys(pull, query, scale)
        return found_query, found_key, _to_keys(weights, grad) if of_value else None, None, None


def _weighed(scores: Tensor, value: Tensor, hidden: Hidden | None) -> Tensor:
    """softmax(scores) value, of scores in which what is hidden is −inf."""
    empty = None if hidden is None else hidden.queries
    if empty is not None:  # filled before and emptied after: no NaN is made either way
        scores = scores.masked_fill(empty, 0.0)
    weights = torch.softmax(scores, -1)
    if empty is not None:
        weights = weights.masked_fill(empty, 0.0)
    return torch.bmm(weights, value)


class _Proportional(torch.autograd.Function):
    """(scores / Σ scores) value, for scores that are never negative; 0 where all of them are 0.

    Divided after the values are pooled: answers are fewer than weights.
    """

    @staticmethod
    def formula(scores: Tensor, value: Tensor, hidden: Hidden | None) -> Tensor:
        if hidden is not None:
            scores = scores * hidden.factors(scores.dtype)
        total = scores.sum(-1, keepdim=True)
        return torch.bmm(scores, value) / torch.where(total == 0, 1.0, total)

    @staticmethod
    def run(scores: Tensor, value: Tensor, hidden: Hidden | None) -> tuple[Tensor, Tensor, Tensor]:
        if hidden is not None:
            scores = scores * hidden.factors(scores.dtype)
        total = scores.sum(-1, keepdim=True)
        total = torch.where(total == 0, 1.0, total)  # nothing is attended to: 0 / 1
        return torch.bmm(scores, value).div_(total), scores, total

    @staticmethod
    def forward(ctx: Any, scores: Tensor, value: Tensor, hidden: Hidden | None) -> Tensor:
        pooled, weights, total = _Proportional.run(scores, value, hidden)
        ctx.save_for_backward(scores, value, weights, pooled, total)
        ctx.hidden = hidden
        return pooled

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        scores, value, weights, pooled, total = ctx.saved_tensors
        hidden = ctx.hidden
        if torch.is_grad_enabled():
            return *_again(_Proportional.formula, (scores, value), (hidden,), grad), None
        of_scores, of_value, _ = ctx.needs_input_grad
        grad = grad / total
        pull = None
        if of_scores:
            known = (grad * pooled).sum(-1, keepdim=True)
            pull = torch.baddbmm(known, grad, value.mT, beta=-1)
            if hidden is not None:
                pull.mul_(hidden.factors(pull.dtype))
        return pull, _to_keys(weights, grad) if of_value else None, None


def _steps(scores: Tensor, value: Tensor, hidden: Hidden | None, problem: Problem) -> Tensor:
    tokens = problem.query, problem.key, *problem.similarity.tensors()
    if any(token.requires_grad for token in tokens):
        return _Steps.apply(scores, value, hidden, *tokens)  # type: ignore[no-untyped-call,no-any-return]
    return _Proportional.formula(scores, value, hidden)


class _Steps(torch.autograd.Function):
    """The same for scores that are a step function of `tokens`, whose gradient is therefore 0."""

    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, value: Tensor, hidden: Hidden | None, *tokens: Tensor
    ) -> Tensor:
        pooled, weights, total = _Proportional.run(scores, value, hidden)
        ctx.save_for_backward(weights, value, total, *tokens)
        return pooled

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        weights, value, total, *tokens = ctx.saved_tensors
        if torch.is_grad_enabled():

            def formula(value: Tensor, *tokens: Tensor) -> Tensor:
                return steps(torch.bmm(weights, value) / total, *tokens)

            of_value, *of_tokens = _again(formula, (value, *tokens), (), grad)
            return None, of_value, None, *of_tokens
        _, value_wanted, _, *wanted = ctx.needs_input_grad
        nothing = total.new_zeros(())
        return (
            None,
            _to_keys(weights, grad / total) if value_wanted else None,
            None,
            *(
                nothing.expand_as(x) if want else None
                for x, want in zip(tokens, wanted, strict=True)
            ),
        )
