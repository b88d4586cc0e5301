"""The formula in float64, all pairs at once: what every operator's answer is compared with.

Nothing here calls qkv, except that parameters are read from its similarities. What differs from
`tests/oracle.py`: it is quick enough for long searches, and torch differentiates it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

import qkv

Score = Callable[[Any, Tensor, Tensor], Tensor]  # similarity, query, key -> logs of weights


@dataclass(frozen=True)
class Kind:
    """A similarity, made at random, and its formula for pairs (…, n, 1, d), (…, 1, m, d)."""

    name: str
    make: Callable[[np.random.Generator, int, int], Any]
    log_score: Score
    own_key_size: bool = False  # whether keys may have another size than queries
    near: bool = False  # whether it only sees keys about one bandwidth away


def _dot(q: Tensor, k: Tensor) -> Tensor:
    return (q * k).sum(-1)


def _unit(x: Tensor) -> Tensor:
    square = x.square().sum(-1, keepdim=True)
    return x / torch.where(square == 0, 1.0, square).sqrt()


def _positive(positive: Any, like: Tensor) -> Tensor:
    if positive.log is not None:
        return positive.log.exp()
    return torch.tensor(positive.fixed, dtype=like.dtype)


def _distance(similarity: Any, q: Tensor, k: Tensor) -> Tensor:
    """‖q − k‖ in bandwidths, whose derivative at 0 is 0."""
    square = ((q - k) / _positive(similarity.bandwidth, q)).square().sum(-1)
    apart = square > 0
    return torch.where(apart, torch.where(apart, square, 1.0).sqrt(), square)


def _log(height: Tensor) -> Tensor:
    seen = height > 0
    log = torch.where(seen, torch.where(seen, height, 1.0).log(), -torch.inf)
    return torch.where(height.isnan(), height, log)


_HEIGHTS: dict[str, Callable[[Tensor], Tensor]] = {
    "boxcar": lambda u: torch.where(u.isnan(), u, (u <= 1).to(u.dtype)),
    "triangular": lambda u: 1 - u,
    "epanechnikov": lambda u: 1 - u * u,
    "biweight": lambda u: (1 - u * u).clamp(min=0) ** 2,
    "tricube": lambda u: (1 - u**3).clamp(min=0) ** 3,
}


def _kernel(name: str) -> Kind:
    def make(rng: np.random.Generator, d: int, _: int) -> Any:
        width: Any = float(np.exp(rng.uniform(-1, 1)))
        if rng.random() < 0.3 and d > 0:
            width = np.exp(rng.uniform(-1, 1, d)).tolist()
        return getattr(qkv, name.capitalize())(bandwidth=width, learnable=rng.random() < 0.3)

    def log_score(s: Any, q: Tensor, k: Tensor) -> Tensor:
        u = _distance(s, q, k)
        if name == "gaussian":
            return -0.5 * u * u
        return -u if name == "laplacian" else _log(_HEIGHTS[name](u))

    return Kind(name, make, log_score, near=True)


def _additive(s: Any, q: Tensor, k: Tensor) -> Tensor:
    return torch.tanh(s.query_projection(q) + s.key_projection(k)) @ s.weight


def _gated(base: Score) -> Score:
    def log_score(s: Any, q: Tensor, k: Tensor) -> Tensor:
        gate = torch.sigmoid(s.query_gate(q) + s.key_gate(k)).squeeze(-1)
        return gate * base(s.base, q, k)

    return log_score


def _scaled(s: Any, q: Tensor, k: Tensor) -> Tensor:
    return _dot(q, k) * (1 / math.sqrt(q.shape[-1]) if s.scale is None else s.scale)


def _cosine(s: Any, q: Tensor, k: Tensor) -> Tensor:
    return _dot(_unit(q), _unit(k)) / _positive(s.temperature, q)


# Formulas of users' own, as they would write them: the engine derives kernels of them.


def city_block(query: Tensor, key: Tensor) -> Tensor:
    return -(query.unsqueeze(-2) - key.unsqueeze(-3)).abs().sum(-1)


def max_norm(query: Tensor, key: Tensor) -> Tensor:
    return -(query.unsqueeze(-2) - key.unsqueeze(-3)).abs().amax(-1)


def huber(query: Tensor, key: Tensor) -> Tensor:
    gap = (query.unsqueeze(-2) - key.unsqueeze(-3)).abs()
    return -torch.where(gap < 0.7, gap * gap / 1.4, gap - 0.35).sum(-1)


def polynomial(query: Tensor, key: Tensor) -> Tensor:
    return (query @ key.mT * 0.3 + 0.5) ** 3 * 0.1


class Cauchy(qkv.Similarity):
    """1 / (1 + |q − k|²), weights in proportion."""

    weighting = "proportional"

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return 1 / (1 + (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(-1))


class Rectified(torch.nn.Module):
    """w · relu(W_q q + W_k k)."""

    def __init__(self, query_dim: int, key_dim: int) -> None:
        super().__init__()
        self.query = torch.nn.Linear(query_dim, 7)
        self.key = torch.nn.Linear(key_dim, 7, bias=False)
        self.weight = torch.nn.Parameter(torch.randn(7) / 3)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        hidden = torch.relu(self.query(query).unsqueeze(-2) + self.key(key).unsqueeze(-3))
        return hidden @ self.weight


def _huber(s: Any, q: Tensor, k: Tensor) -> Tensor:
    gap = (q - k).abs()
    return -torch.where(gap < 0.7, gap.square() / 1.4, gap - 0.35).sum(-1)


KINDS = [
    Kind("dot", lambda rng, d, _: qkv.Dot(), lambda s, q, k: _dot(q, k)),
    Kind(
        "scaled_dot",
        lambda rng, d, _: qkv.ScaledDot(None if rng.random() < 0.7 else float(rng.normal())),
        _scaled,
    ),
    Kind(
        "cosine",
        lambda rng, d, _: qkv.Cosine(float(np.exp(rng.normal())), bool(rng.random() < 0.3)),
        _cosine,
    ),
    Kind(
        "bilinear",
        lambda rng, d, e: qkv.Bilinear(d, e),
        lambda s, q, k: ((q @ s.weight) * k).sum(-1),
        own_key_size=True,
    ),
    Kind(
        "additive",
        lambda rng, d, e: qkv.Additive(d, e, int(rng.choice([1, 5, 16, 33])), rng.random() < 0.7),
        _additive,
        own_key_size=True,
    ),
    Kind("gated", lambda rng, d, _: qkv.Gated(d, d), _gated(lambda s, q, k: _dot(q, k))),
    Kind("gated-scaled", lambda rng, d, _: qkv.Gated(d, d, qkv.ScaledDot()), _gated(_scaled)),
    Kind(
        "euclidean",
        lambda rng, d, _: qkv.Euclidean(),
        lambda s, q, k: -(q - k).square().sum(-1),
    ),
    *(_kernel(name) for name in ("gaussian", "laplacian", *_HEIGHTS)),
    Kind(
        "equal",
        lambda rng, d, _: qkv.Equal(),
        lambda s, q, k: torch.where((q == k).all(-1), 0.0, -torch.inf).to(q.dtype),
    ),
    Kind(
        "city-block",
        lambda rng, d, _: city_block,
        lambda s, q, k: -(q - k).abs().sum(-1),
    ),
    Kind("max-norm", lambda rng, d, _: max_norm, lambda s, q, k: -(q - k).abs().amax(-1)),
    Kind("huber", lambda rng, d, _: huber, _huber),
    Kind(
        "polynomial",
        lambda rng, d, _: polynomial,
        lambda s, q, k: (_dot(q, k) * 0.3 + 0.5) ** 3 * 0.1,
    ),
    Kind(
        "cauchy",
        lambda rng, d, _: Cauchy(),
        lambda s, q, k: -torch.log1p((q - k).square().sum(-1)),
    ),
    Kind(
        "rectified",
        lambda rng, d, e: Rectified(d, e),
        lambda s, q, k: torch.relu(s.query(q) + s.key(k)) @ s.weight,
        own_key_size=True,
    ),
    Kind(
        "sum-of-dots",
        lambda rng, d, _: qkv.ScaledDot() + 0.5 * qkv.Cosine(0.7),
        lambda s, q, k: _dot(q, k) / math.sqrt(q.shape[-1]) + 0.5 * _dot(_unit(q), _unit(k)) / 0.7,
    ),
    Kind(
        "capped",
        lambda rng, d, _: (0.7 * qkv.Dot()).soft_cap(2.0),
        lambda s, q, k: 2.0 * torch.tanh(0.7 * _dot(q, k) / 2.0),
    ),
    Kind(
        "product-of-kernels",
        lambda rng, d, _: qkv.Laplacian(0.9) * qkv.Triangular(1.1),
        lambda s, q, k: -_far(q, k, 0.9) + _log(1 - _far(q, k, 1.1)),
        near=True,
    ),
    Kind(
        "mixture-of-kernels",
        lambda rng, d, _: 0.3 * qkv.Gaussian(0.4) + 0.8 * qkv.Triangular(0.9),
        lambda s, q, k: torch.log(
            0.3 * torch.exp(-0.5 * _far(q, k, 0.4).square())
            + 0.8 * (1 - _far(q, k, 0.9)).clamp(min=0)
        ),
        near=True,
    ),
]


def _far(q: Tensor, k: Tensor, width: float) -> Tensor:
    square = ((q - k) / width).square().sum(-1)
    apart = square > 0
    return torch.where(apart, torch.where(apart, square, 1.0).sqrt(), square)


@dataclass(frozen=True)
class Question:
    """What is asked, spelled out for every pair."""

    kind: Kind
    similarity: Any  # in float64
    allowed: Tensor  # (*batch, n, m), boolean
    added: Tensor | None  # what is added to the scores, (*batch, n, m)
    top: int | None


@dataclass(frozen=True)
class Reply:
    answer: Tensor  # (*batch, n, d_v)
    log_total: Tensor  # (*batch, n)
    scores: Tensor  # (*batch, n, m); −inf where a key is hidden
    weights: Tensor
    margin: Tensor | None = None  # (*batch, n): how clear it is which keys are the best


def reply(
    question: Question, query: Tensor, key: Tensor, value: Tensor, noise: Tensor | None = None
) -> Reply:
    """Answers and log totals; `noise` (…, n, m) is what scores are multiplied with."""
    scores = question.kind.log_score(
        question.similarity, query.unsqueeze(-2), key.unsqueeze(-3)
    )  # (*batch, n, m)
    if question.added is not None:
        scores = scores + question.added
    if noise is not None:
        scores = torch.where(scores.isinf(), scores, scores * noise)
    scores = torch.where(question.allowed, scores, -torch.inf)
    margin = None
    if question.top is not None and scores.shape[-1] > question.top:
        edge = scores.detach().topk(question.top + 1).values[..., -2:]
        margin = (edge[..., 0] - edge[..., 1]) / (1 + edge[..., 1].abs())
        margin = margin.masked_fill(edge[..., 1] == -torch.inf, torch.inf)
        # Of equal scores those that come first: a stable sort in descending order.
        order = torch.sort(scores.detach(), dim=-1, descending=True, stable=True).indices
        kept = torch.zeros_like(question.allowed).expand(scores.shape).clone()
        kept.scatter_(-1, order[..., : question.top], True)
        scores = torch.where(kept, scores, -torch.inf)
    if scores.shape[-1] == 0:
        return Reply(scores @ value, scores.sum(-1) - torch.inf, scores, scores)
    empty = (scores == -torch.inf).all(-1, keepdim=True)
    filled = scores.masked_fill(empty, 0.0)
    weights = torch.softmax(filled, -1).masked_fill(empty, 0.0)
    total = torch.logsumexp(filled, -1).masked_fill(empty.squeeze(-1), -torch.inf)
    return Reply(weights @ value, total, scores, weights, margin)
