"""Every similarity and every mask of qkv, each beside its oracle."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import oracle
import torch
from torch import Tensor

import qkv
from qkv import bias, mask

# A prime of its own for every dimension, so that swapped axes cannot pass.
BATCH, N, M, D, D_K, D_V, HIDDEN = 2, 5, 7, 3, 11, 13, 17


@dataclass(frozen=True)
class Case:
    """A similarity, the size of its keys, and its formula in plain Python."""

    name: str
    make: Callable[[], Any]
    log_score: Callable[[Any], oracle.Score]
    query_dim: int = D
    key_dim: int = D
    #: Distances between queries and keys are kept below about one, where kernels are not 0.
    near: bool = False
    learned: bool = False
    #: Similarities made of others meet some of the masks only: they are the same behind them.
    few_masks: bool = False

    def build(self, dtype: torch.dtype = torch.float64) -> Any:
        torch.manual_seed(1)
        similarity = self.make()
        if isinstance(similarity, torch.nn.Module):
            similarity = similarity.to(dtype)
        return similarity


def _rows(tensor: Tensor) -> list[Any]:
    return tensor.detach().double().tolist()


def _additive(similarity: Any) -> oracle.Score:
    bias = similarity.query_projection.bias
    shift = [0.0] * HIDDEN if bias is None else _rows(bias)
    return oracle.additive(
        _rows(similarity.query_projection.weight),
        _rows(similarity.key_projection.weight),
        shift,
        _rows(similarity.weight),
    )


def _gated(base: Callable[[Any], oracle.Score]) -> Callable[[Any], oracle.Score]:
    return lambda s: oracle.gated(
        _rows(s.query_gate.weight)[0], _rows(s.key_gate.weight)[0], base(s.base)
    )


def _city_block(query: Tensor, key: Tensor) -> Tensor:
    return -(query.unsqueeze(-2) - key.unsqueeze(-3)).abs().sum(-1)


def _max_norm(query: Tensor, key: Tensor) -> Tensor:
    return -(query.unsqueeze(-2) - key.unsqueeze(-3)).abs().amax(-1)


class Cauchy(qkv.Similarity):
    """1 / (1 + |q - k|²): a class as someone else writes it, whose kernel is derived."""

    weighting = "proportional"

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return 1 / (1 + (query.unsqueeze(-2) - key.unsqueeze(-3)).square().sum(-1))


class Rectified(torch.nn.Module):
    """w · relu(W_q q + W_k k) / temperature: a learned module that is no similarity of qkv's."""

    def __init__(self) -> None:
        super().__init__()
        self.query = torch.nn.Linear(D, HIDDEN)
        self.key = torch.nn.Linear(D_K, HIDDEN, bias=False)
        self.weight = torch.nn.Parameter(torch.randn(HIDDEN) / 4)
        self.log_temperature = torch.nn.Parameter(torch.tensor(0.3))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        hidden = torch.relu(self.query(query).unsqueeze(-2) + self.key(key).unsqueeze(-3))
        return hidden @ self.weight / self.log_temperature.exp()


def _rectified(module: Rectified) -> oracle.Score:
    to_query, bias = _rows(module.query.weight), _rows(module.query.bias)
    to_key, weight = _rows(module.key.weight), _rows(module.weight)
    scale = module.log_temperature.detach().double().exp().item()

    def score(q: list[float], k: list[float]) -> float:
        total = 0.0
        for h in range(HIDDEN):
            hidden = bias[h] + sum(a * b for a, b in zip(to_query[h], q, strict=True))
            hidden += sum(a * b for a, b in zip(to_key[h], k, strict=True))
            total += weight[h] * max(0.0, hidden)
        return total / scale

    return score


def _square(q: list[float], k: list[float]) -> float:
    return sum((a - b) ** 2 for a, b in zip(q, k, strict=True))


def _kernel(name: str, bandwidth: Any = 0.9, learnable: bool = False, dim: int = D) -> Case:
    maker = getattr(qkv, name.capitalize())
    label = name if isinstance(bandwidth, float) else f"{name}-per-dimension"
    return Case(
        f"{label}-learned" if learnable else label,
        lambda: maker(bandwidth=bandwidth, learnable=learnable),
        lambda s: oracle.kernel(name, _positive(s.bandwidth)),
        query_dim=dim,
        key_dim=dim,
        near=True,
        learned=learnable,
    )


def _positive(positive: Any) -> Any:
    return positive.fixed if positive.log is None else positive.log.detach().double().exp().tolist()


def _weighted_sum(similarity: Any) -> oracle.Score:
    additive = _additive(similarity.base.right)
    return lambda q, k: 2.0 * math.tanh((0.7 * oracle.dot(q, k) + additive(q, k)) / 2.0)


def _mixture(similarity: Any) -> oracle.Score:
    width = _positive(similarity.right.base.bandwidth)
    near, far = oracle.kernel("gaussian", 0.4), oracle.kernel("triangular", width)
    return lambda q, k: math.log(0.3 * math.exp(near(q, k)) + 0.8 * math.exp(far(q, k)))


ALGEBRA = [
    Case(
        "sum-of-dots",
        lambda: qkv.ScaledDot() + 0.5 * qkv.Cosine(0.3),
        lambda s: lambda q, k: oracle.scaled_dot(q, k) + 0.5 * oracle.cosine(q, k, 0.3),
    ),
    Case(
        "soft-capped-sum",
        lambda: (0.7 * qkv.Dot() + qkv.Additive(D, D, HIDDEN)).soft_cap(2.0),
        _weighted_sum,
        learned=True,
    ),
    Case(
        "product-of-kernels",
        lambda: qkv.Laplacian(0.9) * qkv.Triangular(1.1),
        lambda s: (
            lambda q, k: (
                oracle.kernel("laplacian", 0.9)(q, k) + oracle.kernel("triangular", 1.1)(q, k)
            )
        ),
        near=True,
        few_masks=True,
    ),
    Case(
        "mixture-of-kernels",
        lambda: 0.3 * qkv.Gaussian(0.4) + 0.8 * qkv.Triangular(0.9, learnable=True),
        _mixture,
        near=True,
        learned=True,
    ),
    Case(
        "temperature-learned",
        lambda: qkv.Dot().with_temperature(1.7, learnable=True),
        lambda s: lambda q, k: oracle.dot(q, k) / _positive(s.temperature),
        learned=True,
        few_masks=True,
    ),
]

SIMILARITIES = [
    Case("dot", qkv.Dot, lambda s: oracle.dot),
    Case("scaled_dot", qkv.ScaledDot, lambda s: oracle.scaled_dot),
    Case("cosine", lambda: qkv.Cosine(0.3), lambda s: lambda q, k: oracle.cosine(q, k, 0.3)),
    Case(
        "bilinear",
        lambda: qkv.Bilinear(D, D_K),
        lambda s: oracle.bilinear(_rows(s.weight)),
        key_dim=D_K,
        learned=True,
    ),
    Case("additive", lambda: qkv.Additive(D, D_K, HIDDEN), _additive, key_dim=D_K, learned=True),
    Case(
        "additive-no-bias",
        lambda: qkv.Additive(D, D_K, HIDDEN, bias=False),
        _additive,
        key_dim=D_K,
        learned=True,
    ),
    Case("gated", lambda: qkv.Gated(D, D), _gated(lambda s: oracle.dot), learned=True),
    Case(
        "gated-scaled",
        lambda: qkv.Gated(D, D, base=qkv.ScaledDot()),
        _gated(lambda s: oracle.scaled_dot),
        learned=True,
    ),
    Case(
        "gated-bilinear",
        lambda: qkv.Gated(D, D_K, base=qkv.Bilinear(D, D_K)),
        _gated(lambda s: oracle.bilinear(_rows(s.weight))),
        key_dim=D_K,
        learned=True,
    ),
    Case("euclidean", qkv.Euclidean, lambda s: oracle.euclidean),
    _kernel("gaussian"),
    _kernel("gaussian", [0.5, 0.7, 0.9]),
    _kernel("gaussian", 0.8, learnable=True),
    _kernel("laplacian"),
    _kernel("boxcar"),
    _kernel("triangular"),
    _kernel("epanechnikov"),
    _kernel("epanechnikov", [0.7, 0.8, 0.9], learnable=True),
    _kernel("biweight"),
    _kernel("tricube"),
    Case("equal", qkv.Equal, lambda s: oracle.equal),
    Case(
        "callable",
        lambda: _city_block,
        lambda s: lambda q, k: -sum(abs(a - b) for a, b in zip(q, k, strict=True)),
    ),
    Case(
        "callable-max-norm",
        lambda: _max_norm,
        lambda s: lambda q, k: -max(abs(a - b) for a, b in zip(q, k, strict=True)),
    ),
    Case("formula-cauchy", Cauchy, lambda s: lambda q, k: -math.log(1 + _square(q, k))),
    Case("formula-rectified", Rectified, _rectified, key_dim=D_K, learned=True),
    *ALGEBRA,
]


#: Kernels of one-dimensional keys, for operators that serve no others.
LINES = [
    _kernel(name, dim=1)
    for name in (
        "gaussian",
        "laplacian",
        "boxcar",
        "triangular",
        "epanechnikov",
        "biweight",
        "tricube",
    )
]


@dataclass(frozen=True)
class MaskCase:
    """A mask for queries (BATCH, n) and keys (BATCH, m), and who it lets through."""

    name: str
    make: Callable[[int, int], Any]
    allow: oracle.Allow = lambda *_: True
    bias: Callable[[Any], Callable[[int, int], float]] = lambda made: lambda i, j: 0.0
    top: int | None = None


LENGTHS = [4, 0]


def _boolean(n: int, m: int) -> Tensor:
    # Reproducible, irregular, with an empty row.
    i, j = torch.arange(n).unsqueeze(-1), torch.arange(m)
    return ((i * 5 + j * 3) % 4 != 0) & (i != 1)


def _floating(n: int, m: int) -> Tensor:
    i, j = torch.arange(n).unsqueeze(-1), torch.arange(m)
    bias = torch.sin(i * 1.7 + j * 0.9).double()
    return bias.masked_fill((i + j) % 3 == 0, -torch.inf)


def _by_position(n: int, m: int, made: Any) -> Any:
    """A mask or bias that remembers where queries stand, for the oracle."""
    made.ahead = m - n
    return made


def _slope(made: Any) -> Callable[[int, int], float]:
    return lambda i, j: -0.3 * abs(j - i - made.ahead)


def _wave(i: Any, j: Any) -> Any:
    return torch.sin(i * 1.7 + j * 0.9 + (i - 2 * j) * 0.1)


def _waves(made: Any) -> Callable[[int, int], float]:
    return lambda i, j: math.sin((i + made.ahead) * 1.8 + j * 0.7)


def _at(i: int, n: int, m: int) -> int:
    return i + m - n


MASKS = [
    MaskCase("none", lambda n, m: None),
    MaskCase("causal", lambda n, m: mask.Causal(), lambda b, i, j, n, m: j <= _at(i, n, m)),
    MaskCase(
        "window", lambda n, m: mask.Window(2, 1), lambda b, i, j, n, m: -2 <= j - _at(i, n, m) <= 1
    ),
    MaskCase(
        "except-self", lambda n, m: mask.ExceptSelf(), lambda b, i, j, n, m: j != _at(i, n, m)
    ),
    MaskCase(
        "blocks", lambda n, m: mask.Blocks(3), lambda b, i, j, n, m: _at(i, n, m) // 3 == j // 3
    ),
    MaskCase(
        "dilated",
        lambda n, m: mask.Dilated(2, 2),
        lambda b, i, j, n, m: abs(j - _at(i, n, m)) in (0, 2, 4),
    ),
    MaskCase("lengths", lambda n, m: mask.Lengths(LENGTHS), lambda b, i, j, n, m: j < LENGTHS[b]),
    MaskCase("top", lambda n, m: mask.TopK(3), top=3),
    MaskCase(
        "top-causal",
        lambda n, m: mask.TopK(2) & mask.Causal(),
        lambda b, i, j, n, m: j <= _at(i, n, m),
        top=2,
    ),
    MaskCase(
        "causal-lengths",
        lambda n, m: mask.Causal() & mask.Lengths(LENGTHS),
        lambda b, i, j, n, m: j <= _at(i, n, m) and j < LENGTHS[b],
    ),
    MaskCase(
        "dilated-causal-lengths",
        lambda n, m: mask.Dilated(1, 3) & mask.Causal() & mask.Lengths(LENGTHS),
        lambda b, i, j, n, m: j - _at(i, n, m) in (0, -3) and j < LENGTHS[b],
    ),
    MaskCase(
        "top-floating",
        lambda n, m: _floating(n, m) & mask.TopK(2),
        bias=lambda made: lambda i, j: made.left.tensor[i][j].item(),
        top=2,
    ),
    MaskCase(
        "window-or-blocks",
        lambda n, m: mask.Window(0, 1) | mask.Blocks(4),
        lambda b, i, j, n, m: 0 <= j - _at(i, n, m) <= 1 or _at(i, n, m) // 4 == j // 4,
    ),
    MaskCase("boolean", _boolean, lambda b, i, j, n, m: (i * 5 + j * 3) % 4 != 0 and i != 1),
    MaskCase(
        "boolean-per-key",
        lambda n, m: torch.arange(m) % 2 == 0,
        lambda b, i, j, n, m: j % 2 == 0,
    ),
    MaskCase(
        "boolean-per-batch",
        lambda n, m: torch.stack([_boolean(n, m), torch.zeros(n, m, dtype=torch.bool)]),
        lambda b, i, j, n, m: b == 0 and (i * 5 + j * 3) % 4 != 0 and i != 1,
    ),
    MaskCase(
        "alibi",
        lambda n, m: _by_position(n, m, bias.Alibi(torch.tensor(0.3, dtype=torch.float64))),
        bias=_slope,
    ),
    MaskCase(
        "alibi-causal",
        lambda n, m: _by_position(
            n, m, mask.Causal() & bias.Alibi(torch.tensor(0.3, dtype=torch.float64))
        ),
        lambda b, i, j, n, m: j <= _at(i, n, m),
        bias=_slope,
    ),
    MaskCase(
        "function-lengths",
        lambda n, m: _by_position(
            n,
            m,
            bias.FromFunction(lambda i, j: _wave(i.double(), j.double())) & mask.Lengths(LENGTHS),
        ),
        lambda b, i, j, n, m: j < LENGTHS[b],
        bias=_waves,
    ),
    MaskCase("floating", _floating, bias=lambda made: lambda i, j: made[i][j].item()),
    MaskCase(
        "floating-causal",
        lambda n, m: mask.Causal() & _floating(n, m),
        lambda b, i, j, n, m: j <= _at(i, n, m),
        bias=lambda made: lambda i, j: made.right.tensor[i][j].item(),
    ),
]


def inputs(
    case: Case, n: int = N, m: int = M, dtype: torch.dtype = torch.float64, batch: int = BATCH
) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    scale = 0.4 if case.near else 1.0
    query = scale * torch.randn(batch, n, case.query_dim, generator=generator, dtype=torch.float64)
    key = scale * torch.randn(batch, m, case.key_dim, generator=generator, dtype=torch.float64)
    value = torch.randn(batch, m, D_V, generator=generator, dtype=torch.float64)
    if case.name == "equal" and n and m:
        key[:, 0] = query[:, 0]
        key[:, m - 1] = query[:, 0]
        key[:, m // 2] = query[:, n - 1]
    return query.to(dtype), key.to(dtype), value.to(dtype)


def expected(
    case: Case, mask_case: MaskCase, similarity: Any, made_mask: Any, *tensors: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The oracle's answers, weights and log totals for a whole batch."""
    query, key, value = (tensor.detach().double().tolist() for tensor in tensors)
    entries = [
        oracle.attention(
            query[b],
            key[b],
            value[b],
            case.log_score(similarity),
            mask_case.allow,
            mask_case.bias(made_mask),
            batch=b,
            top=mask_case.top,
        )
        for b in range(len(query))
    ]
    return tuple(torch.tensor(part, dtype=torch.float64) for part in zip(*entries, strict=True))
