"""The core against torch itself: overhead of the dot family, memory of everything else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import qkv
from qkv.benchmarks import Figure
from qkv.benchmarks.measure import peak_extra_bytes, process_seconds, seconds

MB = 1e6


def measure() -> Iterator[Figure]:
    torch.manual_seed(0)
    yield from _dot_family()
    yield from _streamed_additive()
    yield from _growth()
    yield from _start_up()


def _dot_family() -> Iterator[Figure]:
    for n in (512, 2048):
        query, key, value = torch.randn(3, 2, 4, n, 64).unbind()
        plain, ours = seconds(
            lambda: F.scaled_dot_product_attention(query, key, value),  # noqa: B023
            lambda: qkv.attend(query, key, value),  # noqa: B023
            least=4.0,
            rounds=15,
        )
        yield Figure(f"attend / SDPA, 8 heads, n = {n}, d = 64", ours / plain, "×", "≤ 1.05")
        plain, ours = seconds(
            lambda: F.scaled_dot_product_attention(query, key, value, is_causal=True),  # noqa: B023
            lambda: qkv.attend(query, key, value, mask=qkv.mask.Causal()),  # noqa: B023
            least=4.0,
            rounds=15,
        )
        yield Figure(f"… looking back only, n = {n}", ours / plain, "×", "≤ 1.05")
    query, key, value = torch.randn(3, 1, 1, 16, 64).unbind()
    plain, ours = seconds(
        lambda: F.scaled_dot_product_attention(query, key, value),
        lambda: qkv.attend(query, key, value),
        rounds=15,
    )
    yield Figure("attend − SDPA, n = 16", (ours - plain) * 1e6, "µs", "≤ 30")


def _both_ways(function: Callable[..., Tensor], tensors: list[Tensor]) -> Callable[[], Any]:
    return lambda: torch.autograd.grad(function(*tensors).sum(), tensors)


def _streamed_additive() -> Iterator[Figure]:
    similarity = qkv.Additive(128, 128, 128)

    def eager(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        queries = similarity.query_projection(query).unsqueeze(-2)
        hidden = torch.tanh(queries + similarity.key_projection(key).unsqueeze(-3))
        return torch.softmax(hidden @ similarity.weight, dim=-1) @ value

    def ours(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return qkv.attend(query, key, value, similarity=similarity, operator="streamed")

    tensors = [torch.randn(4096, 128, requires_grad=True) for _ in range(3)]
    extra = peak_extra_bytes(_both_ways(ours, tensors)) / MB
    note = f"all scores at once: {4096**2 * 128 * 4 / MB:,.0f} MB"
    yield Figure(
        "streamed additive, 4,096², hidden 128, forward and backward", extra, "MB", "≤ 300", note
    )
    tensors = [torch.randn(1024, 128, requires_grad=True) for _ in range(3)]
    with torch.no_grad():
        plain, tiled = seconds(lambda: eager(*tensors), lambda: ours(*tensors))
    yield Figure("streamed / eager additive, 1,024², forward", tiled / plain, "×", "≤ 1.5")
    plain, tiled = seconds(_both_ways(eager, tensors), _both_ways(ours, tensors))
    yield Figure("… forward and backward", tiled / plain, "×", "≤ 1.5")


def _growth() -> Iterator[Figure]:
    """How peak memory grows when n = m grows eightfold; linear growth is 8, quadratic 64.

    Pages and small tables count too, so a little more than 8 is still linear.
    """
    similarities = {
        name: getattr(qkv, name)()
        for name in ("Dot", "ScaledDot", "Cosine", "Euclidean", "Gaussian", "Laplacian", "Boxcar",
                     "Triangular", "Epanechnikov", "Equal")
    }  # fmt: skip
    d = 16
    similarities["Bilinear"] = qkv.Bilinear(d, d)
    similarities["Additive"] = qkv.Additive(d, d, 2)
    similarities["Gated"] = qkv.Gated(d, d)
    similarities["callable"] = lambda query, key: query @ key.mT
    for name, similarity in similarities.items():
        extra = []
        for n in (4096, 32768):
            query, key, value = (torch.randn(n, d) for _ in range(3))

            def run() -> None:
                with torch.no_grad():
                    qkv.attend(query, key, value, similarity=similarity)  # noqa: B023

            if n == 4096:
                run()
            extra.append(peak_extra_bytes(run) / MB)
        note = f"{extra[0]:.1f} MB at 4,096, {extra[1]:.1f} MB at 32,768"
        growth = extra[1] / max(extra[0], 0.1)
        yield Figure(f"memory of {name}, n from 4,096 to 32,768", growth, "×", "≤ 9", note)


def _start_up() -> Iterator[Figure]:
    clock = "import torch, time; start = time.perf_counter(); import qkv; qkv.attend"
    elapsed = process_seconds(f"{clock}; print(time.perf_counter() - start)", printed=True)
    yield Figure("import qkv, beside import torch", elapsed, "s", "≤ 0.3")
    elapsed = process_seconds(
        "import sys; sys.argv = ['qkv', '--help']; from qkv.cli import app; app()"
    )
    yield Figure("qkv --help", elapsed, "s", "≤ 0.5")
