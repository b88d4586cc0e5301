"""Formulas as users write them, against the same formula in eager torch, torch.compile and KeOps.

None of these formulas is known to the package: their kernels are derived when they are first used.
"""

from __future__ import annotations

import importlib.util
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qkv
from qkv.benchmarks import Figure
from qkv.benchmarks.measure import can_measure_memory, peak_extra_bytes, seconds

N, D = 2048, 64
LONG = 16_384
TABLE_ROWS, EXAMPLES = 2_000_000, 20_000
MB = 1e6

Formula = Callable[[Tensor, Tensor], Tensor]


def city_block(query: Tensor, key: Tensor) -> Tensor:
    return -(query[:, None] - key[None]).abs().sum(-1)


def max_norm(query: Tensor, key: Tensor) -> Tensor:
    return -(query[:, None] - key[None]).abs().amax(-1)


def canberra(query: Tensor, key: Tensor) -> Tensor:
    size = query[:, None].abs() + key[None].abs()
    return -((query[:, None] - key[None]).abs() / size).sum(-1)


def huber(query: Tensor, key: Tensor) -> Tensor:
    size = (query[:, None] - key[None]).abs()
    return -torch.where(size < 1.0, 0.5 * size * size, size - 0.5).sum(-1)


class WideGaussian(nn.Module):
    """A Gaussian with a learned width for each feature."""

    def __init__(self) -> None:
        super().__init__()
        self.log_width = nn.Parameter(torch.linspace(0.0, 1.0, D))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        squared = ((query[:, None] - key[None]) / self.log_width.exp()).square()
        return -0.5 * squared.sum(-1)


class Rectified(nn.Module):
    """w · relu(W_q q + W_k k)."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = nn.Linear(D, 128), nn.Linear(D, 128, bias=False)
        self.weight = nn.Parameter(torch.randn(128) / 128**0.5)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.relu(self.query(query)[:, None] + self.key(key)[None]) @ self.weight


def capped_cosine(query: Tensor, key: Tensor) -> Tensor:
    cosine = F.normalize(query, dim=-1) @ F.normalize(key, dim=-1).mT
    return 20 * torch.tanh(cosine / 2)


def poincare(query: Tensor, key: Tensor) -> Tensor:
    query, key = query / 20, key / 20
    room = (1 - query.square().sum(-1))[:, None] * (1 - key.square().sum(-1))
    return -torch.acosh(1 + 2 * torch.cdist(query, key).square() / room)


def rational_quadratic(query: Tensor, key: Tensor) -> Tensor:
    return -torch.log1p(torch.cdist(query, key).square() / 2)


class Cauchy(qkv.Similarity):
    """1 / (1 + ‖q − k‖²), to which weights are proportional."""

    weighting = "proportional"

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return 1 / (1 + (query[:, None] - key[None]).square().sum(-1))


class Row(NamedTuple):
    """A formula, how many queries and keys, and what is wanted against eager, forward and both."""

    formula: Any
    n: int
    forward: str
    both: str


ROWS = [
    Row(city_block, N, "≥ 25", "≥ 12"),
    Row(Rectified, 512, "≥ 20", "≥ 10"),
    Row(max_norm, N, "", "≥ 8"),
    Row(canberra, N, "", "≥ 8"),
    Row(huber, N, "", "≥ 8"),
    Row(WideGaussian, N, "", "≥ 8"),
    Row(capped_cosine, N, "≥ 1.2", "≥ 1"),
    Row(poincare, N, "≥ 1.2", "≥ 1"),
    Row(rational_quadratic, N, "≥ 1.2", "≥ 1"),
]


def measure() -> Iterator[Figure]:
    torch.manual_seed(0)
    for part in PARTS.values():
        yield from part()


def _tokens(n: int) -> list[Tensor]:
    return [torch.randn(n, D) for _ in range(3)]


def _eager(formula: Formula) -> Callable[..., Tensor]:
    def answer(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.softmax(formula(query, key), -1) @ value

    return answer


def _by_qkv(formula: Any, operator: str | None = None) -> Callable[..., Tensor]:
    def answer(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return qkv.attend(query, key, value, similarity=formula, operator=operator)

    return answer


def _both_ways(
    answer: Callable[..., Tensor], tokens: list[Tensor], formula: Any
) -> Callable[[], Any]:
    leaves = [x.clone().requires_grad_() for x in tokens]
    inputs = [*leaves, *(formula.parameters() if isinstance(formula, nn.Module) else ())]
    return lambda: torch.autograd.grad(answer(*leaves).sum(), inputs)


def _forward(answer: Callable[..., Tensor], tokens: list[Tensor]) -> Callable[[], Any]:
    def run() -> Tensor:
        with torch.no_grad():
            return answer(*tokens)

    return run


def _against_eager(row: Row) -> Iterator[Figure]:
    formula = row.formula() if isinstance(row.formula, type) else row.formula
    name, tokens = row.formula.__name__, _tokens(row.n)
    qkvs, eager = _by_qkv(formula), _eager(formula)
    start = time.perf_counter()
    _forward(qkvs, tokens)()
    first = time.perf_counter() - start
    _both_ways(qkvs, tokens, formula)()
    whole = time.perf_counter() - start
    for direction, limit, run in (
        ("forward", row.forward, _forward),
        ("both ways", row.both, lambda f, x: _both_ways(f, x, formula)),
    ):
        slow, quick = seconds(run(eager, tokens), run(qkvs, tokens), rounds=3)
        note = f"{quick * 1e3:.1f} ms; the first call {first if run is _forward else whole:.2f} s"
        work = f"{name}, {row.n:,}², {direction}: eager's time / qkv's"
        yield Figure(work, slow / quick, "×", limit, note)


def _against_compile() -> Iterator[Figure]:
    tokens = _tokens(N)
    compiled = torch.compile(_eager(city_block))
    for direction, limit, run in (
        ("forward", "≥ 4", _forward),
        ("both ways", "≥ 3", lambda f, x: _both_ways(f, x, city_block)),
    ):
        slow, quick = seconds(run(compiled, tokens), run(_by_qkv(city_block), tokens), rounds=3)
        yield Figure(
            f"city_block, {N:,}², {direction}: torch.compile's / qkv's", slow / quick, "×", limit
        )


def _against_keops() -> Iterator[Figure]:
    if importlib.util.find_spec("pykeops") is None:
        return
    from pykeops.torch import LazyTensor

    tokens = _tokens(N)
    ones = torch.ones(N, 1)

    def keops(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        squared = ((LazyTensor(query[:, None]) - LazyTensor(key[None])) ** 2).sum(-1)
        weights = 1 / (1 + squared)
        answer: Tensor = (weights @ value) / (weights @ ones)
        return answer

    qkvs = _by_qkv(Cauchy())
    assert torch.allclose(keops(*tokens), qkvs(*tokens), atol=1e-4)
    slow, quick = seconds(_forward(keops, tokens), _forward(qkvs, tokens), rounds=3)
    note = f"{quick * 1e3:.1f} ms"
    yield Figure(f"Cauchy, {N:,}², forward: KeOps' time / qkv's", slow / quick, "×", "≥ 3", note)


class _Gate(nn.Module):
    """The formula of `qkv.Gated`, as a user writes it."""

    def __init__(self, gated: qkv.Gated) -> None:
        super().__init__()
        self.gated = gated

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        gate = self.gated.query_gate(query) + self.gated.key_gate(key).mT
        return torch.sigmoid(gate) * (query @ key.mT)


def _laplacian(query: Tensor, key: Tensor) -> Tensor:
    return -torch.cdist(query, key)


def _against_built_in() -> Iterator[Figure]:
    """A user's formula against the package's similarity of the same formula."""
    tokens, gated = _tokens(N), qkv.Gated(D, D)
    for name, formula, built_in in (
        ("Laplacian", _laplacian, qkv.Laplacian()),
        ("Gated", _Gate(gated), gated),
    ):
        for direction, run in (
            ("forward", _forward),
            ("both ways", lambda f, x: _both_ways(f, x, None)),
        ):
            derived, known = seconds(
                *(run(_by_qkv(each, "fused"), tokens) for each in (formula, built_in)), rounds=7
            )
            work = f"{name}, {N:,}², {direction}: its time as a formula / as built in"
            yield Figure(work, derived / known, "×", "≤ 1.05", f"{derived * 1e3:.1f} ms")


def _gaussian_of(u: Tensor) -> Tensor:
    return torch.exp(-0.5 * u * u)


def _in_a_table() -> Iterator[Figure]:
    """A user's kernel against the same of the package, over all rows of a table."""
    if importlib.util.find_spec("pyarrow") is None:
        return
    import pyarrow as pa

    key, value = torch.randn(2, TABLE_ROWS, dtype=torch.float64).numpy()
    database = qkv.Database(pa.table({"key": key, "value": value}), key="key", value="value")

    kernels: list[Any] = [_gaussian_of, "gaussian"]
    for name, ask, query in (
        ("a query", database.query, 0.5), ("8 queries", database.curve, list(range(8)))
    ):  # fmt: skip
        runs = (
            lambda how=how, ask=ask, query=query: ask(query, similarity=how, bandwidth=0.5)
            for how in kernels
        )
        derived, known = seconds(*runs, rounds=7)
        work = f"Gaussian of {TABLE_ROWS:,} rows, {name}: its time as a formula / as built in"
        yield Figure(work, derived / known, "×", "≤ 1.2", f"{derived * 1e3:.1f} ms")


def _in_a_regression() -> Iterator[Figure]:
    """The same in a regressor; of one column the package's own takes sums over sorted keys."""
    if importlib.util.find_spec("sklearn") is None:
        return
    kernels: list[Any] = [_gaussian_of, "gaussian"]
    for columns, limit in ((3, "≤ 1.2"), (1, "")):
        x = torch.randn(EXAMPLES, columns, dtype=torch.float64).numpy()
        models = (
            qkv.NadarayaWatsonRegressor(kernel=how, bandwidth=0.3).fit(x, x[:, 0])
            for how in kernels
        )
        runs = (partial(model.predict, x[::10]) for model in models)
        derived, known = seconds(*runs, rounds=7)
        work = (
            f"Gaussian of {EXAMPLES:,} examples of {columns} columns, {EXAMPLES // 10:,} answers: "
            "its time as a formula / as built in"
        )
        yield Figure(work, derived / known, "×", limit, f"{derived * 1e3:.1f} ms")


def _memory() -> Iterator[Figure]:
    if not can_measure_memory():
        return
    for row in ROWS:
        formula = row.formula() if isinstance(row.formula, type) else row.formula
        run = _both_ways(_by_qkv(formula), _tokens(LONG), formula)
        megabytes = peak_extra_bytes(run) / MB
        name = row.formula.__name__
        yield Figure(f"{name}, {LONG:,}², both ways: memory", megabytes, "MB", "≤ 200")


#: Each takes less than a minute on two cores.
PARTS: dict[str, Callable[[], Iterator[Figure]]] = {
    **{row.formula.__name__: partial(_against_eager, row) for row in ROWS},
    "compile": _against_compile,
    "keops": _against_keops,
    "built-in": _against_built_in,
    "table": _in_a_table,
    "regression": _in_a_regression,
    "memory": _memory,
}
