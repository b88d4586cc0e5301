"""The answer together with the weights it was made of."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.overrides import handle_torch_function, has_torch_function_variadic

from qkv import grouped
from qkv.mask import MaskLike, as_mask
from qkv.nonfinite import quarantine
from qkv.normalize import softmax
from qkv.operators.arithmetic import settled, settled_weights
from qkv.operators.dense import admit
from qkv.problem import Problem, validate
from qkv.similarity import Bilinear, Cosine, Dot, ScaledDot, SimilarityLike, as_similarity
from qkv.similarity.base import product, widen
from qkv.tracing import can_read_values

#: Similarities whose scores are a matrix product, made for us and free to be written over.
_PRODUCTS = (Dot, ScaledDot, Cosine, Bilinear)


class AnswerAndWeights(NamedTuple):
    answer: Tensor  # (..., n, d_v)
    weights: Tensor  # (..., n, m)


def attend_with_weights(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    similarity: SimilarityLike = None,
    mask: MaskLike | None = None,
    dropout: float = 0.0,
    enable_gqa: bool = False,
) -> AnswerAndWeights:
    """As :func:`qkv.attend`, by way of the weights, which are given out too.

    With dropout they are the weights after it: those that made the answer.
    """
    if has_torch_function_variadic(query, key, value):
        options: dict[str, Any] = {"similarity": similarity, "mask": mask, "dropout": dropout}
        if enable_gqa:
            grouped.check(query, key, value)
            options["enable_gqa"] = True
        tensors = (query, key, value)
        weighed: AnswerAndWeights = handle_torch_function(
            attend_with_weights, tensors, *tensors, **options
        )
        return weighed
    if enable_gqa:
        return _of_groups(query, key, value, similarity, mask, dropout)
    asked = validate(query, key, value, similarity, mask, dropout)
    quarantined = quarantine(asked)
    problem = quarantined.problem
    weights = _weights(problem)
    if problem.dropout is not None:
        weights = problem.dropout.apply(weights, 0)
    weights = weights.expand(*problem.batch, problem.n, problem.m)
    answer = product(weights, widen(problem.value)).to(value.dtype)
    answer, _ = settled(asked, (quarantined.mark(answer), None))
    weights = settled_weights(asked, quarantined.mark(weights), 0, problem.n)
    return AnswerAndWeights(answer, weights.to(query.dtype))


def _of_groups(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    similarity: SimilarityLike,
    mask: MaskLike | None,
    dropout: float,
) -> AnswerAndWeights:
    """The same of heads that share those of keys and values."""
    whole = None if mask is None else as_mask(mask)
    chosen = as_similarity(similarity)
    parts = [
        attend_with_weights(*part[:3], similarity=part.similarity, mask=part.mask, dropout=dropout)
        for part in grouped.questions(query, key, value, chosen, whole, dropout)
    ]
    answers, weights = (list(each) for each in zip(*parts, strict=True))
    return AnswerAndWeights(
        grouped.joined(answers, (query, key, value), value.shape[-1]),
        grouped.joined(weights, (query, key, value), key.shape[-2]),
    )


def _weights(problem: Problem) -> Tensor:
    query, key = problem.similarity.prepare(problem.query, problem.key)
    log_scores = problem.similarity.log_score(query, key)
    if (
        isinstance(problem.similarity, _PRODUCTS)
        and problem.mask is None
        and problem.position_bias is None
        and not problem.needs_grad
        and can_read_values(query)
    ):
        # Written over the scores: a second block of this size costs more than filling it.
        return torch.softmax(log_scores, dim=-1, out=log_scores)
    return softmax(*admit(problem, log_scores, problem.bias))
