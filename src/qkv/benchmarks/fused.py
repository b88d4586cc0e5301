"""Fused and banded kernels against eager torch, torch.compile, SDPA, FlexAttention and KeOps."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import qkv
from qkv.benchmarks import Figure
from qkv.benchmarks.measure import peak_extra_bytes, seconds
from qkv.benchmarks.roofline import additive_scores
from qkv.benchmarks.start import first_calls
from qkv.similarity.base import FusedForm

MB = 1e6


def measure() -> Iterator[Figure]:
    torch.manual_seed(0)
    yield from _additive()
    yield from _gaussian()
    yield from _gated()
    yield from _window()
    yield from first_calls()
    yield from _crossovers()


def _both_ways(function: Callable[..., Tensor], tensors: list[Tensor]) -> Callable[[], Any]:
    return lambda: torch.autograd.grad(function(*tensors).sum(), tensors)


def _attend(tensors: Sequence[Tensor], **options: Any) -> Tensor:
    query, key, value = tensors
    return qkv.attend(query, key, value, **options)


def _sdpa(tensors: Sequence[Tensor], **options: Any) -> Tensor:
    query, key, value = tensors
    return F.scaled_dot_product_attention(query, key, value, **options)


def _accuracy(ours: Tensor, naive: Tensor, exact: Tensor) -> str:
    """How far off the answer is, and how far a naive computation of the same type is."""

    def error(answer: Tensor) -> float:
        return (answer - exact).square().mean().sqrt().item()

    return f"error {error(ours):.1e}, naive {error(naive):.1e}"


def _additive() -> Iterator[Figure]:
    n, h = 512, 128
    w = torch.randn(h) / h**0.5
    similarity = _Projected(h, h, h).requires_grad_(False)
    similarity.weight.copy_(w)

    def eager(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3)) @ w.to(query.dtype)
        return torch.softmax(scores, dim=-1) @ value

    def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return qkv.attend(query, key, value, similarity=similarity, operator="fused")

    compiled = torch.compile(eager)
    tensors = [torch.randn(n, h) for _ in range(3)]
    note = _accuracy(ours(*tensors), eager(*tensors), eager(*(x.double() for x in tensors)))
    bare = additive_scores(tensors[0], tensors[1], w)
    tiles = similarity(tensors[0], tensors[1]).unflatten(1, (len(bare()), -1)).transpose(0, 1)
    assert torch.allclose(bare(), tiles, atol=1e-4)
    with torch.no_grad():
        slow, quick, fused, loop = seconds(
            lambda: eager(*tensors),
            lambda: compiled(*tensors),
            lambda: ours(*tensors),
            bare,
            rounds=9,
        )
    name = "additive forward, 512², hidden 128, against"
    yield Figure(f"{name} eager", slow / fused, "×", "≥ 50", note)
    yield Figure(f"{name} torch.compile", quick / fused, "×", "≥ 10")
    yield Figure("… share of the bare score loop's speed", loop / fused, "", "≥ 0.6")

    batch = [torch.randn(8, 1, n, h) for _ in range(3)]
    with torch.no_grad():
        dot, fused = seconds(lambda: _sdpa(batch), lambda: ours(*batch), rounds=9)
    yield Figure("… batch 8, time against SDPA", fused / dot, "×", "≤ 4")

    for tensor in tensors:
        tensor.requires_grad_()
    slow, quick, fused = seconds(
        _both_ways(eager, tensors),
        _both_ways(compiled, tensors),
        _both_ways(ours, tensors),
        rounds=9,
    )
    yield Figure("additive forward and backward, against eager", slow / fused, "×", "≥ 25")
    yield Figure("… against torch.compile", quick / fused, "×", "≥ 14")
    large = [torch.randn(8192, h, requires_grad=True) for _ in range(3)]
    run = _both_ways(ours, large)
    yield Figure(
        "additive 8,192², forward and backward, extra memory",
        peak_extra_bytes(run) / MB,
        "MB",
        "≤ 150",
    )


class _Projected(qkv.Additive):
    """Additive attention over tokens that are projected already: the work of the pairs alone."""

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return query, key

    def as_fused(self, query: Tensor, key: Tensor) -> FusedForm:
        return FusedForm("additive", query, key, self.weight)


def _gaussian() -> Iterator[Figure]:
    query, key, value = torch.rand(2000, 1), torch.rand(100_000, 1), torch.randn(100_000, 1)
    similarity = qkv.Gaussian(0.1)

    def eager(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return torch.softmax(-0.5 * ((query - key.T) / 0.1).square(), dim=-1) @ value

    def ours(operator: str | None = None) -> Tensor:
        return qkv.attend(query, key, value, similarity=similarity, operator=operator)

    note = _accuracy(
        ours(), eager(query, key, value), eager(*(x.double() for x in (query, key, value)))
    )
    slow, planned, fused = seconds(
        lambda: eager(query, key, value), ours, lambda: ours(operator="fused")
    )
    name = "Gaussian, 2,000 × 100,000, one dimension, against"
    chosen = qkv.explain(query, key, value, similarity=similarity).operator
    yield Figure(f"{name} eager", slow / planned, "×", "≥ 20", f"by {chosen}; {note}")
    yield Figure("… by the fused kernel, which looks at all pairs", slow / fused, "×", "")
    if importlib.util.find_spec("pykeops") is None:
        yield Figure(f"{name} KeOps", float("nan"), "×", "", "pykeops is not installed")
    else:
        keops = _keops(query, key, value)
        slow, planned, fused = seconds(keops, ours, lambda: ours(operator="fused"))
        yield Figure(f"{name} KeOps", slow / planned, "×", "≥ 30", f"by {chosen}")
        yield Figure("… by the fused kernel, which looks at all pairs", slow / fused, "×", "")

    d = 64
    query, key, value = torch.randn(3, 4096, d).unbind()
    wide = qkv.Gaussian(d**0.25)
    doubles = [x.double() for x in (query, key, value)]
    exact = _attend(doubles, similarity=wide, operator="dense")
    naive = qkv.attend(query, key, value, similarity=wide, operator="dense")
    note = _accuracy(qkv.attend(query, key, value, similarity=wide), naive, exact)
    four = [x[None, None] for x in (query, key, value)]
    dot, augmented = seconds(
        lambda: _sdpa(four),
        lambda: qkv.attend(query, key, value, similarity=wide),
        rounds=9,
    )
    yield Figure("Gaussian, 4,096², d = 64, time against SDPA", augmented / dot, "×", "≤ 1.3", note)


def _keops(query: Tensor, key: Tensor, value: Tensor) -> Callable[[], Any]:
    from pykeops.torch import LazyTensor

    def run() -> Tensor:
        x, y = LazyTensor(query[:, None, :] / 0.1), LazyTensor(key[None, :, :] / 0.1)
        scores = -((x - y) ** 2).sum(-1) / 2
        return scores.sumsoftmaxweight(LazyTensor(value[None, :, :]), axis=1)  # type: ignore[no-any-return]

    return run


def _gated() -> Iterator[Figure]:
    d = 64
    similarity = qkv.Gated(d, d, base=qkv.ScaledDot()).requires_grad_(False)

    def eager(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        gate = torch.sigmoid(similarity.query_gate(query) + similarity.key_gate(key).mT)
        return torch.softmax(gate * (query @ key.mT) / d**0.5, dim=-1) @ value

    def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return qkv.attend(query, key, value, similarity=similarity)

    tensors = [torch.randn(4, 4096, d, requires_grad=True) for _ in range(3)]
    with torch.no_grad():
        few = [x[:, :512] for x in tensors]
        note = _accuracy(ours(*few), eager(*few), _double_gated(eager, similarity, few))
    slow, fused = seconds(_both_ways(eager, tensors), _both_ways(ours, tensors), rounds=3)
    extra = peak_extra_bytes(_both_ways(ours, tensors)) / MB
    note += f"; {extra:.0f} MB beside, all weights {4 * 4096**2 * 4 / MB:.0f} MB"
    name = "gated forward and backward, 4 heads, 4,096², d = 64, against eager"
    yield Figure(name, slow / fused, "×", "≥ 1.5", note)


def _double_gated(
    eager: Callable[..., Tensor], similarity: qkv.Gated, tensors: list[Tensor]
) -> Tensor:
    similarity.double()
    exact = eager(*(x.double() for x in tensors))
    similarity.float()
    return exact


def _window() -> Iterator[Figure]:
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    n, reach = 16384, 256
    mask = qkv.mask.Window(reach, reach)
    tensors = [torch.randn(1, 8, n, 64) for _ in range(3)]
    flex = torch.compile(flex_attention)
    blocks = create_block_mask(
        lambda b, h, i, j: (i - j <= reach) & (j - i <= reach), 1, 1, n, n, device="cpu"
    )

    def ours(*tensors: Tensor) -> Tensor:
        return _attend(tensors, mask=mask)

    few = [x[:, :1, :4096] for x in tensors]
    exact = _attend([x.double() for x in few], mask=mask, operator="streamed")
    note = _accuracy(ours(*few), _attend(few, mask=mask, operator="streamed"), exact)
    peer, banded = seconds(
        lambda: flex(tensors[0], tensors[1], tensors[2], block_mask=blocks),
        lambda: ours(*tensors),
        rounds=7,
    )
    name = "Window(256, 256), 8 heads, n = 16,384, d = 64"
    yield Figure(f"{name}, against FlexAttention", peer / banded, "×", "≥ 1.0", note)

    for tensor in tensors:
        tensor.requires_grad_()
    dense_mask = mask.allowed(qkv.mask.Tile(0, n, n, n, (), torch.device("cpu")))

    def dense(*tensors: Tensor) -> Tensor:
        return _sdpa(tensors, attn_mask=dense_mask)

    slow, banded = seconds(
        _both_ways(dense, tensors), _both_ways(ours, tensors), rounds=3, least=0.1
    )
    yield Figure("… forward and backward, against SDPA with a mask", slow / banded, "×", "≥ 8")
    twice = [torch.randn(1, 8, 2 * n, 64) for _ in range(3)]
    with torch.no_grad():
        once, double = seconds(lambda: ours(*tensors), lambda: ours(*twice))
    yield Figure("… time at n = 32,768 / at 16,384", double / once, "×", "≤ 2.2")


def _crossovers() -> Iterator[Figure]:
    """Both sides of each crossover: above 1 the operator chosen there is the quicker."""

    def ratio(chosen: str, other: str, tensors: list[Tensor], **options: Any) -> float:
        with torch.no_grad():
            chosen_seconds, peer = seconds(
                lambda: _attend(tensors, operator=chosen, **options),
                lambda: _attend(tensors, operator=other, **options),
                least=0.3,
            )
        return peer / chosen_seconds

    def tokens(n: int, d: int, heads: int = 1) -> list[Tensor]:
        return [torch.randn(1, heads, n, d) for _ in range(3)]

    for n, chosen, other in ((64, "dense", "fused"), (256, "fused", "dense")):
        measured = ratio(chosen, other, tokens(n // 2, 4), similarity="laplacian")
        yield Figure(f"Laplacian, n = {n // 2}, d = 4: {other} / {chosen}", measured, "×", "")
    for d, chosen, other in ((2, "fused", "sdpa"), (16, "sdpa", "fused")):
        measured = ratio(chosen, other, tokens(2048, d), similarity=qkv.Gaussian(d**0.5))
        yield Figure(f"Gaussian, n = 2,048, d = {d}: {other} / {chosen}", measured, "×", "")
    for n, chosen, other in ((128, "sdpa", "banded"), (4096, "banded", "sdpa")):
        measured = ratio(chosen, other, tokens(n, 64, 8), mask=qkv.mask.Window(32, 32))
        yield Figure(f"Window(32, 32), n = {n}: {other} / {chosen}", measured, "×", "")
    for n, chosen, other in ((32, "dense", "topk"), (1024, "topk", "streamed")):
        measured = ratio(chosen, other, tokens(n, 64), mask=qkv.mask.TopK(8))
        yield Figure(f"TopK(8), n = {n}: {other} / {chosen}", measured, "×", "")
