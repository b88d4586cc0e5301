"""The answer together with the weights it was made of."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from qkv.mask import MaskLike
from qkv.operators.dense import weigh
from qkv.problem import pose
from qkv.quarantine import quarantine
from qkv.similarity import SimilarityLike
from qkv.similarity.base import widen


class Weighed(NamedTuple):
    answer: Tensor  # (..., n, d_v)
    weights: Tensor  # (..., n, m)


def attend_weighed(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    similarity: SimilarityLike = None,
    mask: MaskLike | None = None,
    dropout: float = 0.0,
) -> Weighed:
    """As :func:`qkv.attend`, by way of the weights, which are given out too.

    With dropout they are the weights after it: those that made the answer.
    """
    quarantined = quarantine(pose(query, key, value, similarity, mask, dropout))
    problem = quarantined.problem
    log_scores = problem.similarity.log_score(
        *problem.similarity.prepare(problem.query, problem.key)
    )
    weights = weigh(problem, log_scores, problem.bias).weights
    if problem.dropout is not None:
        weights = problem.dropout.apply(weights, 0)
    weights = weights.expand(*problem.batch, problem.n, problem.m)
    answer = (weights @ widen(problem.value)).to(value.dtype)
    return Weighed(quarantined.mark(answer), quarantined.mark(weights.to(query.dtype)))
