"""From Euclidean distance to the dot product

The distance between a query and a key consists of two norms and a dot product: −‖q − k‖² =
−‖q‖² − ‖k‖² + 2qᵀk (Eq. 6; the slides print its first sign wrong). ‖q‖² is the same for every key
and drops out of softmax; if all keys have the same norm, so does ‖k‖², and only 2qᵀk is left (Eq.
7). Scaled by 1/√D that is Eq. 8. With keys of different norms the two disagree, as the last column
shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qkv.gallery.parts import Figure, Part, Result, Table, code_of
from qkv.visualization import plot
from qkv.visualization.plot import palette

SOURCE = "Dot product; Eqs. 6 to 8"
KEYS, D = 5, 4


def compare() -> Any:
    import torch

    import qkv

    generator = torch.Generator().manual_seed(1)
    query, key = torch.randn(1, 4, generator=generator), torch.randn(5, 4, generator=generator)
    unit = torch.nn.functional.normalize(key, dim=-1)  # keys of one norm
    distance = qkv.weights(query, unit, similarity=qkv.Euclidean())
    dot = qkv.weights(query, unit, similarity=2.0 * qkv.Dot())  # Eq. 7
    scaled = qkv.weights(query, unit)  # Eq. 8
    unequal = [qkv.weights(query, key, similarity=f) for f in (qkv.Euclidean(), 2.0 * qkv.Dot())]
    return query, unit, distance, dot, scaled, unequal


def parts() -> Iterator[Part]:
    query, unit, distance, dot, scaled, unequal = compare()
    apart = (distance - dot).abs().max().item()
    far = (unequal[0] - unequal[1]).abs().max().item()
    yield Result(
        f"keys of one norm: weights differ by {apart:.0e}; of different norms: by {far:.2f}"
    )
    rows = []
    for place in range(KEYS):
        squared = -(query[0] - unit[place]).square().sum().item()
        norms = -query.square().sum().item() - unit[place].square().sum().item()
        twice = 2 * (query[0] @ unit[place]).item()
        numbers = (squared, norms, twice, distance[0, place], dot[0, place], scaled[0, place])
        rows.append([f"k{place + 1}", *(f"{float(number):.3f}" for number in numbers)])
    names = ["key", "−‖q−k‖²", "−‖q‖²−‖k‖²", "2qᵀk", "α, Eq. 6", "α, Eq. 7", "α, Eq. 8"]
    yield Table(names, rows, "Keys of norm 1: the second and third numbers make the first")
    yield Figure(
        _draw(distance[0], dot[0], unequal),
        "Weights by distance and by dot product: the same for keys of one norm, else not",
    )
    yield code_of(compare)


def _draw(distance: Any, dot: Any, unequal: Any) -> Any:
    figure = plot.canvas.new(5.2, 2.2)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, pair, title in (
        (panels[0], (distance, dot), "keys of one norm"),
        (panels[1], (unequal[0][0], unequal[1][0]), "keys of different norms"),
    ):
        for side, (weights, colour, name) in enumerate(
            zip(pair, (palette.WEIGHT, palette.KEY), ("−‖q − k‖²", "2qᵀk"), strict=True)
        ):
            axes.bar(
                np.arange(KEYS) + 0.4 * side - 0.2, weights.tolist(), 0.36, color=colour, label=name
            )
        plot.canvas.tidy(axes).set_title(title, fontsize=10, color=palette.MUTED)
        axes.set_xticks(range(KEYS), [f"k{place + 1}" for place in range(KEYS)])
    panels[0].set_ylabel("weight", fontsize=9)
    panels[0].legend(frameon=False, fontsize=9)
    return figure
