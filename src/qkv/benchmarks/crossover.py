"""The planner's choice against every other operator that can serve, on random problems.

The times also give the lines of :mod:`qkv.cost` anew, for the machine at hand:
``qkv bench crossover --costs costs.json``, then ``QKV_COSTS=costs.json``.
"""

from __future__ import annotations

import math
import random
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

import qkv
from qkv import cost
from qkv.benchmarks import Figure
from qkv.benchmarks.measure import least_seconds
from qkv.operators import fused, sdpa
from qkv.plan import OPERATORS
from qkv.problem import Problem, validate

PROBLEMS = 200
#: Features of pairs in a problem, and numbers in its tensors: small enough for many problems.
MOST_WORK, MOST_NUMBERS = 2**26, 2**23
#: A choice is good that takes at most so many times as long as the best, or so much longer.
RATIO, SECONDS = 1.2, 20e-6

SIMILARITIES: dict[str, Callable[[int], Any]] = {
    "scaled dot": lambda d: qkv.ScaledDot(),
    "bilinear": lambda d: qkv.Bilinear(d, d),
    "additive": lambda d: qkv.Additive(d, d, d),
    "gated": lambda d: qkv.Gated(d, d),
    "gaussian": lambda d: qkv.Gaussian(2 * math.sqrt(d)),
    "laplacian": lambda d: qkv.Laplacian(2 * math.sqrt(d)),
    "boxcar": lambda d: qkv.Boxcar(2 * math.sqrt(d)),
    "tricube": lambda d: qkv.Tricube(2 * math.sqrt(d)),
    "equal": lambda d: qkv.Equal(),
    "a callable": lambda d: _city_block,
}


def _city_block(query: Tensor, key: Tensor) -> Tensor:
    return -(query.unsqueeze(-2) - key.unsqueeze(-3)).abs().sum(-1)


class Trial(NamedTuple):
    """A problem, what was chosen for it, and the seconds of every operator that can serve."""

    problem: str
    line: str  # family/direction, as `qkv.cost` has it
    shares: dict[str, float]  # of pairs that operators visit; of others all
    masks: tuple[str, ...]  # the operators whose mask is to be priced
    work: cost.Work
    chosen: str
    seconds: dict[str, float]

    @property
    def best(self) -> str:
        return min(self.seconds, key=self.seconds.__getitem__)

    @property
    def ratio(self) -> float:
        return self.seconds[self.chosen] / self.seconds[self.best]

    @property
    def good(self) -> bool:
        chosen, best = self.seconds[self.chosen], self.seconds[self.best]
        return chosen <= RATIO * best or chosen <= best + SECONDS


def trials(
    count: int = PROBLEMS, seed: int = 0, budget: float = 0.1, masks: bool = True
) -> Iterator[Trial]:
    """Time `count` random problems, each for about `budget` seconds."""
    chance = random.Random(seed)
    torch.manual_seed(seed)
    while count:
        entries, n, m, d = (
            round(math.exp(chance.uniform(math.log(low), math.log(high))))
            for low, high in ((1, 256), (1, 3000), (10, 100_000), (2, 96))
        )
        if entries * n * m * d > MOST_WORK or entries * (n + m) * d > MOST_NUMBERS:
            continue
        name = chance.choice(list(SIMILARITIES))
        mask = chance.choice(["no mask", "causal", "lengths"]) if masks else "no mask"
        yield _trial(entries, n, m, d, name, mask, chance.random() < 0.5, budget)
        count -= 1


def _trial(
    entries: int, n: int, m: int, d: int, name: str, mask_name: str, both: bool, budget: float
) -> Trial:
    similarity = qkv.similarity.as_similarity(SIMILARITIES[name](d))
    tokens = [torch.randn(entries, size, d, requires_grad=both) for size in (n, m, m)]
    mask: qkv.mask.Mask | None = None
    if mask_name == "causal":
        mask = qkv.mask.Causal()
    elif mask_name == "lengths":
        mask = qkv.mask.Lengths(torch.randint(max(1, m // 2), m + 1, (entries,)))
    differentiated = [*tokens, *similarity.parameters()]

    def run(operator: str) -> Callable[[], Any]:
        def forward() -> Tensor:
            return qkv.attend(*tokens, similarity=similarity, mask=mask, operator=operator)

        def both_ways() -> Any:
            return torch.autograd.grad(forward(), differentiated, upstream, allow_unused=True)

        def without() -> Tensor:
            with torch.no_grad():
                return forward()

        return both_ways if both else without

    upstream = torch.randn(entries, n, d)
    with torch.set_grad_enabled(both):
        query, key, value = tokens
        problem = validate(query, key, value, similarity, mask).simplified()
        plan = qkv.explain(*tokens, similarity=similarity, mask=mask)
        able = [
            name
            for name, operator in OPERATORS.items()
            if not isinstance(operator.estimate(problem), str)
            and not isinstance(operator.ask(problem), str)
        ]
        work = cost.work(problem)
    direction = "both ways" if both else "forward"
    return Trial(
        f"{name}, ({entries}; {n}, {m}, {d}), {mask_name}, {direction}",
        f"{similarity.family}/{direction}",
        {"fused": fused.share(problem), "sdpa": sdpa.share(problem)},
        _masks(problem),
        work,
        plan.operator,
        dict(zip(able, least_seconds(*map(run, able), budget=budget), strict=True)),
    )


def _masks(problem: Problem) -> tuple[str, ...]:
    if problem.mask is None:
        return ()
    return ("dense", "fused") if problem.is_plainly_causal else ("dense", "fused", "sdpa")


def measure() -> Iterator[Figure]:
    measured = list(trials())
    good = sum(trial.good for trial in measured) / len(measured)
    worst = max(measured, key=lambda trial: trial.ratio * (not trial.good))
    note = f"{len(measured)} random problems"
    yield Figure(f"choices within {RATIO} times the best", 100 * good, "%", "≥ 95", note)
    mean = math.exp(statistics.fmean(math.log(trial.ratio) for trial in measured))
    yield Figure("time of the choice over that of the best, geometric mean", mean, "×", "≤ 1.05")
    note = f"{worst.problem}: {worst.chosen}, where {worst.best} is best"
    yield Figure("the worst choice", worst.ratio, "×", "", note)


def write_costs(path: Path) -> int:
    """Fit the lines of :mod:`qkv.cost` to this machine; how many there are."""
    lines = fit([*trials(masks=False), *trials(seed=1)])
    path.write_text(cost.as_json(lines, torch.get_num_threads()), encoding="utf-8")
    return len(lines)


def fit(measured: list[Trial]) -> dict[str, cost.Line]:
    """The lines that come closest, relatively, to the times of problems without masks; then those
    of masks, to what is left of the others' times."""
    samples: dict[str, list[Sample]] = defaultdict(list)
    for trial in measured:
        for operator, seconds in trial.seconds.items():
            name = _name(operator, trial.line)
            if name is not None and not trial.masks:
                samples[name].append(Sample(_visited(trial, operator), seconds, seconds))
    lines = {name: _line(rows) for name, rows in samples.items() if len(rows) >= FEWEST}
    left: dict[str, list[Sample]] = defaultdict(list)
    for trial in measured:
        for operator in trial.masks:
            name = _name(operator, trial.line)
            if name is None or operator not in trial.seconds:
                continue
            work = _visited(trial, operator)
            line = lines.get(name, cost.LINES[name])
            seconds = trial.seconds[operator]
            more = max(1e-6, seconds - line.seconds(work))
            hiding = work._replace(numbers=0.0, products=0.0, fresh=0.0)
            direction = trial.line.split("/")[1]
            left[f"mask/{operator}/{direction}"].append(Sample(hiding, more, seconds))
    return lines | {name: _line(rows) for name, rows in left.items() if len(rows) >= FEWEST}


def _visited(trial: Trial, operator: str) -> cost.Work:
    """What an operator does of a trial's work; others than dense hold nothing for all pairs."""
    share, work = trial.shares.get(operator, 1.0), trial.work
    fresh = work.fresh if operator == "dense" else 0.0
    return work._replace(pairs=share * work.pairs, products=share * work.products, fresh=fresh)


def _name(operator: str, line: str) -> str | None:
    """The line of :mod:`qkv.cost` that prices an operator's work; None: it has none."""
    direction = line.split("/")[1]
    # Some take as long for any similarity.
    names = (f"{operator}/{line}", f"{operator}/any/{direction}")
    return next((name for name in names if name in cost.LINES), None)


#: Fewest measurements from which a line is fitted.
FEWEST = len(cost.Work._fields)


class Sample(NamedTuple):
    """The work, the seconds it took, and those of the total of which it was a part."""

    work: cost.Work
    seconds: float
    total: float


def _line(rows: list[Sample]) -> cost.Line:
    """Least squares of errors relative to the total, no cost below 0: multiplicative updates."""
    total = np.array([[row.total] for row in rows])
    work = np.array([row.work for row in rows]) / total
    share = np.array([row.seconds for row in rows]) / total[:, 0]
    scale = work.max(axis=0)
    work = work / np.where(scale > 0, scale, 1.0)
    prices = np.ones(work.shape[1])
    target, square = work.T @ share, work.T @ work
    for _ in range(20_000):
        prices *= target / np.maximum(square @ prices, 1e-300)
    costs = prices / np.where(scale > 0, scale, 1.0)
    return cost.Line(*(float(f"{x:.2g}") if x > 1e-15 else 0.0 for x in costs))
