"""The formula as slow loops over Python floats: what every operator must agree with.

Nothing here calls qkv. A similarity is a function of two lists of floats; a mask is a function of
(batch, i, j, n, m).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

Vector = Sequence[float]
Score = Callable[[Vector, Vector], float]
Allow = Callable[[int, int, int, int, int], bool]


def attention(
    query: Sequence[Vector],
    key: Sequence[Vector],
    value: Sequence[Vector],
    log_score: Score,
    allow: Allow = lambda *_: True,
    bias: Callable[[int, int], float] = lambda *_: 0.0,
    batch: int = 0,
    top: int | None = None,
) -> tuple[list[list[float]], list[list[float]], list[float]]:
    """Answers, weights and log totals of one batch entry."""
    n, m = len(query), len(key)
    size = len(value[0]) if value else 0
    answers, weights, totals = [], [], []
    for i in range(n):
        scores = {
            j: log_score(query[i], key[j]) + bias(i, j)
            for j in range(m)
            if allow(batch, i, j, n, m) and bias(i, j) != -math.inf
        }
        if top is not None:
            best = sorted(scores, key=lambda j: (-scores[j], j))[:top]
            scores = {j: scores[j] for j in best}
        peak = max(scores.values(), default=-math.inf)
        row = [0.0] * m
        if peak != -math.inf:
            total = math.fsum(math.exp(s - peak) for s in scores.values())
            for j, s in scores.items():
                row[j] = math.exp(s - peak) / total
            totals.append(math.log(total) + peak)
        else:
            totals.append(-math.inf)
        weights.append(row)
        answers.append([math.fsum(row[j] * value[j][c] for j in range(m)) for c in range(size)])
    return answers, weights, totals


def dot(q: Vector, k: Vector) -> float:
    return math.fsum(a * b for a, b in zip(q, k, strict=True))


def scaled_dot(q: Vector, k: Vector) -> float:
    return dot(q, k) / math.sqrt(len(q))


def cosine(q: Vector, k: Vector, temperature: float = 1.0) -> float:
    lengths = math.sqrt(dot(q, q)) * math.sqrt(dot(k, k))
    return dot(q, k) / lengths / temperature if lengths else 0.0


def bilinear(weight: Sequence[Vector]) -> Score:
    return lambda q, k: math.fsum(
        q[a] * weight[a][b] * k[b] for a in range(len(q)) for b in range(len(k))
    )


def additive(
    to_query: Sequence[Vector], to_key: Sequence[Vector], shift: Vector, weight: Vector
) -> Score:
    return lambda q, k: math.fsum(
        weight[h] * math.tanh(dot(to_query[h], q) + dot(to_key[h], k) + shift[h])
        for h in range(len(weight))
    )


def gated(gate_query: Vector, gate_key: Vector, base: Score) -> Score:
    def score(q: Vector, k: Vector) -> float:
        gate = 1 / (1 + math.exp(-(dot(gate_query, q) + dot(gate_key, k))))
        return gate * base(q, k)

    return score


def distance(q: Vector, k: Vector, unit: float | Vector = 1.0) -> float:
    units = [unit] * len(q) if isinstance(unit, float) else unit
    return math.sqrt(math.fsum(((a - b) / h) ** 2 for a, b, h in zip(q, k, units, strict=True)))


def euclidean(q: Vector, k: Vector) -> float:
    return -(distance(q, k) ** 2)


def kernel(name: str, unit: float | Vector = 1.0) -> Score:
    """The logarithm of a kernel; -inf where it is 0."""

    def log_kernel(q: Vector, k: Vector) -> float:
        u = distance(q, k, unit)
        if name == "gaussian":
            return -0.5 * u * u
        if name == "laplacian":
            return -u
        height = {
            "boxcar": float(u <= 1),
            "triangular": 1 - u,
            "epanechnikov": 1 - u * u,
            "biweight": max(0, 1 - u * u) ** 2,
            "tricube": max(0, 1 - u**3) ** 3,
        }[name]
        return math.log(height) if height > 0 else -math.inf

    return log_kernel


def equal(q: Vector, k: Vector) -> float:
    return 0.0 if list(q) == list(k) else -math.inf
