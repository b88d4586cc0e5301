"""`attend` against the formula written by hand, on everyday shapes.

Every similarity × shape × mask × direction is a cell: the time of `attend` against that of a few
lines of plain torch. A cell is regretted if `attend` takes more than 1.1 times as long and more
than 40 µs longer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

import qkv
from qkv.benchmarks import Figure
from qkv.benchmarks.measure import least_seconds, seconds
from qkv.similarity.prepared import Prepared

#: (leading axes; n, m, d): a decoder's step, a batch of sentences, one query over many keys, …
SHAPES: list[tuple[tuple[int, ...], int, int, int]] = [
    ((64,), 1, 50, 64),
    ((64,), 30, 30, 64),
    ((1,), 64, 64, 16),
    ((8, 8), 128, 128, 64),
    ((1,), 1000, 1000, 32),
    ((1,), 10, 100_000, 8),
    ((1,), 1, 100_000, 64),
    ((32, 4), 64, 64, 32),
    ((1,), 2048, 2048, 64),
    ((256,), 16, 16, 16),
    ((1,), 3000, 300, 3),
]
MASKS = ("no mask", "causal", "lengths")
DIRECTIONS = ("forward", "both ways")

#: A cell counts as regretted beyond this ratio and this difference.
RATIO, SECONDS = 1.1, 40e-6


def measure() -> Iterator[Figure]:
    """Each shape in turn, then the grid as a whole, then what is asked for by name."""
    every: list[Cell] = []
    for place in range(len(SHAPES)):
        of_shape = list(cells(shapes=[place]))
        every += of_shape
        regretted = [cell for cell in of_shape if cell.regretted]
        note = "; ".join(f"{cell} {cell.ratio:.2f}×" for cell in regretted)
        yield Figure(f"{of_shape[0].shape}: attend / eager", _mean(of_shape), "×", "", note)
    regrets = sum(cell.regretted for cell in every)
    yield Figure(f"cells of {len(every)} that are regretted", regrets, "", "≤ 0")
    yield Figure("attend / eager, geometric mean", _mean(every), "×", "≤ 0.45")
    yield from _decoder_step()
    yield from _sentences()
    yield from _smallest()


def _mean(measured: list[Cell]) -> float:
    return math.exp(sum(math.log(cell.ratio) for cell in measured) / len(measured))


def _decoder_step() -> Iterator[Figure]:
    formulas = _formulas(64)
    tokens = [torch.randn(64, size, 64) for size in (1, 50, 50)]
    name = "a decoder's step (64; 1, 50, 64), additive"
    for direction, limit in (("forward", "≥ 2.5"), ("both ways", "≥ 1.8")):
        eager, attend = _contestants(formulas["additive"], tokens, "no mask", direction)
        compiled = _compiled(formulas["additive"], tokens, direction)
        plain, ours, theirs = least_seconds(eager, attend, compiled, budget=3.0)
        note = f"against torch.compile {theirs / ours:.2f}×"
        yield Figure(f"{name}, {direction}: eager / attend", plain / ours, "×", limit, note)
    additive = formulas["additive"].similarity
    with torch.no_grad():
        query, key = additive.prepare(tokens[0], tokens[1])
        value, weight, prepared = tokens[2], additive.weight, Prepared(additive)

        def by_hand() -> Tensor:
            scores = torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3)) @ weight
            return torch.softmax(scores, -1) @ value

        plain, ours = least_seconds(
            _without_gradients(by_hand, []),
            _without_gradients(lambda: qkv.attend(query, key, value, similarity=prepared), []),
            budget=3.0,
        )
    yield Figure("… keys projected beforehand: eager / attend", plain / ours, "×", "≥ 4")


def _sentences() -> Iterator[Figure]:
    tokens = [torch.randn(64, 30, 64) for _ in range(3)]
    for name, limit in (("additive", "≥ 4"), ("gated", "≥ 1")):
        formula = _formulas(64)[name]
        eager, attend = _contestants(formula, tokens, "no mask", "both ways")
        compiled = _compiled(formula, tokens, "both ways")
        plain, ours, theirs = least_seconds(eager, attend, compiled, budget=3.0)
        note = f"against torch.compile {theirs / ours:.2f}×"
        work = f"sentences (64; 30, 30, 64), {name}, both ways: eager / attend"
        yield Figure(work, plain / ours, "×", limit, note)


def _compiled(formula: Formula, tokens: list[Tensor], direction: str) -> Callable[[], Any]:
    compiled = torch.compile(formula.eager, dynamic=False)

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return compiled(query, key, value, None)

    if direction == "forward":
        return _without_gradients(run, tokens)
    leaves = [tensor.clone().requires_grad_() for tensor in tokens]
    return _both_ways(run, [*leaves, *formula.similarity.parameters()])


def _smallest() -> Iterator[Figure]:
    """The overhead of `attend` before the kernel runs, on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        query, key, value = torch.randn(3, 1, 1, 16, 64).unbind()
        plain, ours = seconds(
            lambda: F.scaled_dot_product_attention(query, key, value),
            lambda: qkv.attend(query, key, value),
            rounds=15,
        )
    finally:
        torch.set_num_threads(before)
    note = f"SDPA {plain * 1e6:.1f} µs, attend {ours * 1e6:.1f} µs"
    work = "what attend adds to SDPA, n = 16, d = 64, one thread, against SDPA's own time"
    yield Figure(work, (ours - plain) / plain, "×", "≤ 2", note)


# The formulas, as one writes them down.


def _difference(query: Tensor, key: Tensor) -> Tensor:
    return query.unsqueeze(-2) - key.unsqueeze(-3)  # (..., n, m, d)


def _square(query: Tensor, key: Tensor) -> Tensor:
    return _difference(query, key).square().sum(-1)


def _distance(query: Tensor, key: Tensor) -> Tensor:
    return (_square(query, key) + 1e-12).sqrt()


def _city_block(query: Tensor, key: Tensor) -> Tensor:
    return -_difference(query, key).abs().sum(-1)


class Formula(NamedTuple):
    """A similarity of the library's, and its score (softmax) or kernel written by hand."""

    similarity: Any
    score: Callable[[Tensor, Tensor], Tensor]
    proportional: bool = False

    def eager(self, query: Tensor, key: Tensor, value: Tensor, hidden: Tensor | None) -> Tensor:
        """Three lines of plain torch; `hidden` is True where a key may not be attended to."""
        scores = self.score(query, key)
        if self.proportional:
            if hidden is not None:
                scores = scores.masked_fill(hidden, 0.0)
            return scores / scores.sum(-1, keepdim=True) @ value
        if hidden is not None:
            scores = scores.masked_fill(hidden, -math.inf)
        return torch.softmax(scores, -1) @ value


def _formulas(d: int) -> dict[str, Formula]:
    bilinear, additive = qkv.Bilinear(d, d), qkv.Additive(d, d, d)
    gated = qkv.Gated(d, d)

    def additive_score(query: Tensor, key: Tensor) -> Tensor:
        of_query, of_key = additive.query_projection, additive.key_projection
        # As torch multiplies; the modules do so by :mod:`qkv.linear`.
        hidden = F.linear(query, of_query.weight, of_query.bias).unsqueeze(-2)
        return torch.tanh(hidden + F.linear(key, of_key.weight).unsqueeze(-3)) @ additive.weight

    def gated_score(query: Tensor, key: Tensor) -> Tensor:
        gate = torch.sigmoid(gated.query_gate(query) + gated.key_gate(key).mT)
        return gate * (query @ key.mT)

    def equal(query: Tensor, key: Tensor) -> Tensor:
        return (query.unsqueeze(-2) == key.unsqueeze(-3)).all(-1).to(query.dtype)

    wide = 2.0 * math.sqrt(d)  # most pairs are within this distance, as with a sensible bandwidth
    return {
        "dot": Formula(qkv.Dot(), lambda q, k: q @ k.mT),
        "scaled dot": Formula(qkv.ScaledDot(), lambda q, k: q @ k.mT / math.sqrt(d)),
        "cosine": Formula(
            qkv.Cosine(), lambda q, k: F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT
        ),
        "bilinear": Formula(bilinear, lambda q, k: q @ bilinear.weight @ k.mT),
        "additive": Formula(additive, additive_score),
        "gated": Formula(gated, gated_score),
        "euclidean": Formula(qkv.Euclidean(), lambda q, k: -_square(q, k)),
        "gaussian": Formula(qkv.Gaussian(wide), lambda q, k: -0.5 * _square(q, k) / wide**2),
        "laplacian": Formula(qkv.Laplacian(wide), lambda q, k: -_distance(q, k) / wide),
        "boxcar": Formula(
            qkv.Boxcar(wide), lambda q, k: (_square(q, k) <= wide**2).to(q.dtype), True
        ),
        "triangular": Formula(
            qkv.Triangular(wide), lambda q, k: (1 - _distance(q, k) / wide).clamp(min=0), True
        ),
        "epanechnikov": Formula(
            qkv.Epanechnikov(wide), lambda q, k: (1 - _square(q, k) / wide**2).clamp(min=0), True
        ),
        "biweight": Formula(
            qkv.Biweight(wide),
            lambda q, k: (1 - _square(q, k) / wide**2).clamp(min=0).square(),
            True,
        ),
        "tricube": Formula(
            qkv.Tricube(wide),
            lambda q, k: (1 - (_distance(q, k) / wide) ** 3).clamp(min=0) ** 3,
            True,
        ),
        "equal": Formula(qkv.Equal(), equal, True),
        "a callable": Formula(_city_block, _city_block),
    }


class Cell(NamedTuple):
    similarity: str
    shape: str
    mask: str
    direction: str
    eager: float  # seconds
    ours: float

    @property
    def ratio(self) -> float:
        return self.ours / self.eager

    @property
    def regretted(self) -> bool:
        return self.ours > RATIO * self.eager and self.ours > self.eager + SECONDS

    def __str__(self) -> str:
        return f"{self.similarity}, {self.shape}, {self.mask}, {self.direction}"


def cells(
    similarities: list[str] | None = None,
    shapes: list[int] | None = None,
    masks: tuple[str, ...] = MASKS,
    directions: tuple[str, ...] = DIRECTIONS,
    budget: float = 0.3,
) -> Iterator[Cell]:
    """Measure a grid, all of it by default; `budget` in seconds for each cell."""
    for place in range(len(SHAPES)) if shapes is None else shapes:
        lead, n, m, d = SHAPES[place]
        torch.manual_seed(0)
        tokens = [torch.randn(*lead, size, d) for size in (n, m, m)]
        formulas = _formulas(d)
        for name in similarities or formulas:
            # Each query equals some key, or every row would be empty.
            given = _meeting(tokens) if name == "equal" else tokens
            for mask in masks:
                for direction in directions:
                    shape = f"({'×'.join(map(str, lead))}; {n}, {m}, {d})"
                    contestants = _contestants(formulas[name], given, mask, direction)
                    times = least_seconds(*contestants, budget=budget)
                    yield Cell(name, shape, mask, direction, *times)


def _meeting(tokens: list[Tensor]) -> list[Tensor]:
    """Queries of which each equals some key: drawn from the keys."""
    query, key, value = tokens
    place = torch.randint(0, key.shape[-2], (query.shape[-2],))
    return [key[..., place, :].contiguous(), key, value]


def _contestants(
    formula: Formula, tokens: list[Tensor], mask: str, direction: str
) -> tuple[Callable[[], Any], Callable[[], Any]]:
    query, key, _ = tokens
    n, m = query.shape[-2], key.shape[-2]
    hidden: Tensor | None = None
    mask_object: qkv.mask.Mask | None = None
    if mask == "causal":
        hidden = torch.ones(n, m, dtype=torch.bool).triu(m - n + 1)
        mask_object = qkv.mask.Causal()
    elif mask == "lengths":
        lengths = torch.randint(max(1, m // 2), m + 1, query.shape[:1])
        hidden = torch.arange(m) >= lengths.view(-1, *(1,) * (query.ndim - 1))
        mask_object = qkv.mask.Lengths(lengths)

    def eager(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return formula.eager(query, key, value, hidden)

    def ours(*tensors: Tensor) -> Tensor:
        return qkv.attend(*tensors, similarity=formula.similarity, mask=mask_object)

    if direction == "forward":
        return _without_gradients(eager, tokens), _without_gradients(ours, tokens)
    leaves = [tensor.clone().requires_grad_() for tensor in tokens]
    if isinstance(formula.similarity, torch.nn.Module):
        leaves += formula.similarity.parameters()
    return _both_ways(eager, leaves), _both_ways(ours, leaves)


def _without_gradients(function: Callable[..., Tensor], tensors: list[Tensor]) -> Callable[[], Any]:
    def run() -> Tensor:
        with torch.no_grad():
            return function(*tensors)

    return run


def _both_ways(function: Callable[..., Tensor], leaves: list[Tensor]) -> Callable[[], Any]:
    upstream = torch.randn_like(function(*leaves[:3]).detach())
    return lambda: torch.autograd.grad(function(*leaves[:3]), leaves, upstream, allow_unused=True)
