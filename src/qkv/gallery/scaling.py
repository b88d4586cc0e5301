"""Why 1/√d

The dot product of two random vectors of unit variance has variance d. Unscaled, scores grow with
the dimension until softmax puts all weight on one key, and no gradient gets through to the
others. Divided by √d their variance stays 1, and so does the share of attention each key gets.
Entropy is in bits; 16 keys that share equally have 4.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

import qkv
from qkv.gallery.parts import Figure, Part, Result, Table, code_of
from qkv.visualization import plot
from qkv.visualization.plot import palette

SOURCE = "Scaled Dot Product; Eq. 8"
KEYS, QUERIES = 16, 2000
DIMENSIONS = (4, 16, 64, 256, 1024)


def measured(similarity: qkv.Similarity, d: int) -> tuple[float, float]:
    """The variance of the scores, and the entropy of the weights, of random tokens of size d."""
    generator = torch.Generator().manual_seed(d)
    query = torch.randn(QUERIES, d, generator=generator)
    key = torch.randn(KEYS, d, generator=generator)
    scores = similarity(query, key)
    weights = qkv.weights(query, key, similarity=similarity)
    return scores.var().item(), qkv.summary.entropy(weights).item()


def once() -> Any:
    import torch

    import qkv

    query, key = torch.randn(2000, 256), torch.randn(16, 256)
    plain = qkv.summary.entropy(qkv.weights(query, key, similarity="dot"))
    scaled = qkv.summary.entropy(qkv.weights(query, key, similarity="scaled_dot"))
    return plain, scaled  # in bits, of at most 4


def parts() -> Iterator[Part]:
    plain = [measured(qkv.Dot(), d) for d in DIMENSIONS]
    scaled = [measured(qkv.ScaledDot(), d) for d in DIMENSIONS]
    yield Result(
        f"at d = {DIMENSIONS[-1]:,} the weights have {plain[-1][1]:.2f} bits unscaled, "
        f"{scaled[-1][1]:.2f} scaled"
    )
    yield Figure(_draw(plain, scaled), "Entropy of the weights, and variance of the scores, by d")
    rows = [
        [str(d), *(f"{number:.2f}" for number in (*one, *other))]
        for d, one, other in zip(DIMENSIONS, plain, scaled, strict=True)
    ]
    yield Table(["d", "variance qᵀk", "bits", "variance qᵀk/√d", "bits"], rows)
    yield code_of(once)


def _draw(plain: list[tuple[float, float]], scaled: list[tuple[float, float]]) -> Any:
    figure = plot.canvas.new(5.2, 2.4)
    for axes, column, name in zip(
        figure.subplots(1, 2), (1, 0), ("entropy of the weights, bits", "variance of the scores"),
        strict=True,
    ):  # fmt: skip
        for seconds, colour, label in (
            (plain, palette.QUERY, "qᵀk"),
            (scaled, palette.ANSWER, "qᵀk/√d"),
        ):
            values = [each[column] for each in seconds]
            axes.plot(DIMENSIONS, values, "o-", color=colour, label=label, ms=4, lw=1.8)
        axes.set_xscale("log", base=2)
        axes.set_xticks(DIMENSIONS, map(str, DIMENSIONS))
        plot.canvas.tidy(axes).set_title(name, fontsize=10, color=palette.MUTED)
        axes.set_xlabel("d", fontsize=9)
        if column == 0:
            axes.set_yscale("log")
        else:
            axes.set_ylim(0, 4)
            axes.legend(frameon=False, fontsize=9, loc="center right")
        axes.minorticks_off()
    return figure
