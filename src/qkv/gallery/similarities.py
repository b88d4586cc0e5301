"""Every similarity on the same tokens

Self-attention of the same 1,000 tokens under every similarity, the learned ones untrained. The
attention of one token is described by its largest weight and by the effective number of tokens it
attends to (e to the entropy of its weights); the plan names the operator, the time is the best of
five on this machine, once its kernel was loaded. Only `dense` holds the 1,000 × 1,000 matrix, where
it is small enough to be the fastest.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

import qkv
from qkv.gallery.parts import Figure, Part, Result, Step, Table, code_of
from qkv.visualization import plot
from qkv.visualization.plot import palette

SOURCE = "Common Weight Calculation Methods; Eqs. 5 to 12"
N, D = 1000, 16


def similarities() -> dict[str, qkv.Similarity]:
    """All of them, the learned ones as they are before any training."""
    torch.manual_seed(0)
    return {
        "Dot": qkv.Dot(),
        "ScaledDot": qkv.ScaledDot(),
        "Cosine": qkv.Cosine(temperature=0.1),
        "Bilinear": qkv.Bilinear(D, D),
        "Additive": qkv.Additive(D, D, 32),
        "Gated": qkv.Gated(D, D),
        "Euclidean": qkv.Euclidean(),
        "Gaussian": qkv.Gaussian(bandwidth=2.0),
        "Laplacian": qkv.Laplacian(bandwidth=0.5),
        "Boxcar": qkv.Boxcar(bandwidth=4.0),
        "Triangular": qkv.Triangular(bandwidth=4.0),
        "Epanechnikov": qkv.Epanechnikov(bandwidth=4.0),
        "Biweight": qkv.Biweight(bandwidth=4.0),
        "Tricube": qkv.Tricube(bandwidth=4.0),
        "Equal": qkv.Equal(),
    }


def one_call() -> Any:
    import torch

    import qkv

    x = torch.randn(1000, 16)
    additive = qkv.Additive(query_dim=16, key_dim=16, hidden_dim=32)
    answer = qkv.attend(x, x, x, similarity=additive)
    plan = qkv.explain(x, x, x, similarity=additive)
    return answer, plan


def parts() -> Iterator[Part]:
    x = torch.randn(N, D, generator=torch.Generator().manual_seed(1))
    rows, times = [], {}
    for name, similarity in similarities().items():
        yield Step(f"{name}: a kernel compiles at its first use")
        with torch.no_grad():
            weights = qkv.weights(x, x, similarity=similarity, rows=slice(0, 1))[0]
            qkv.attend(x, x, x, similarity=similarity)
            times[name] = min(_milliseconds(x, similarity) for _ in range(5))
            operator = qkv.explain(x, x, x, similarity=similarity).operator
        sharing = torch.special.entr(weights).sum().exp().item()
        rows.append([name, f"{weights.max().item():.3f}", f"{sharing:.0f}", operator,
                     f"{times[name]:.1f} ms"])  # fmt: skip
    slowest = max(times, key=lambda name: times[name])
    yield Result(
        f"{len(times)} similarities, {min(times.values()):.1f} to {times[slowest]:.1f} ms "
        f"({slowest}) for {N:,} × {N:,} pairs"
    )
    yield Figure(_draw(times), f"Milliseconds for {N:,} queries of {N:,} keys, each similarity")
    yield Table(["similarity", "heaviest", "tokens that share", "operator", "time"], rows)
    yield code_of(one_call)


def _milliseconds(x: torch.Tensor, similarity: qkv.Similarity) -> float:
    start = time.perf_counter()
    qkv.attend(x, x, x, similarity=similarity)
    return 1e3 * (time.perf_counter() - start)


def _draw(times: dict[str, float]) -> Any:
    figure = plot.canvas.new(5.2, 3.4)
    axes = plot.canvas.tidy(figure.subplots())
    names = sorted(times, key=lambda name: times[name])
    bars = axes.barh(names, [times[name] for name in names], color=palette.KEY, height=0.65)
    axes.bar_label(bars, [f"{times[name]:.1f}" for name in names], padding=3, fontsize=9)
    axes.tick_params(axis="y", length=0, labelcolor=palette.INK)
    axes.margins(x=0.12, y=0.02)
    axes.set_xlabel("milliseconds", fontsize=9)
    return figure
