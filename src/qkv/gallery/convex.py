"""Attention pooling is a convex combination

Weights are not negative and sum to 1, so an answer never leaves the convex hull of the values: it
is their centre of mass. The nearer a key is to the query, the larger the weight of its value. With
a narrow bandwidth the answer is close to one value, with a wide one to their mean.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from qkv.gallery.parts import Figure, Part, Result, Table, code_of
from qkv.visualization import plot
from qkv.visualization.plot import palette

SOURCE = "Attention pooling; Eqs. 1 to 3"
BANDWIDTHS = (0.2, 0.6, 1.5)


def pool(bandwidth: float = 0.6) -> Any:
    import numpy as np

    import qkv

    key = np.array([[0.0, 0.2], [1.0, 0.0], [1.2, 1.0], [0.4, 1.3], [-0.3, 0.9]])
    value = np.array([[0.0, 0.0], [3.0, 0.3], [3.6, 2.2], [1.6, 3.4], [-0.4, 2.0]])
    query = np.array([[0.9, 0.8]])
    weights = qkv.weights(query, key, similarity=qkv.Gaussian(bandwidth))
    answer = qkv.attend(query, key, value, similarity=qkv.Gaussian(bandwidth))
    return query[0], key, value, weights[0], answer[0]


def parts() -> Iterator[Part]:
    query, key, value, weights, answer = pool()
    yield Result(f"weights {' + '.join(f'{w:.2f}' for w in weights)} = {weights.sum():.2f}")
    yield Figure(
        _draw(query, key, value, weights, answer),
        "Left: the query among the keys. Right: the answer within the hull of the values; "
        "dots are as large, and lines as thick, as the weights",
    )
    rows = []
    for bandwidth in BANDWIDTHS:
        *_, shares, pooled = pool(bandwidth)
        share = "  ".join(f"{weight:.2f}" for weight in shares)
        rows.append([f"{bandwidth:g}", share, f"({pooled[0]:.2f}, {pooled[1]:.2f})"])
    rows.append(["∞", "  ".join(["0.20"] * 5), "({:.2f}, {:.2f})".format(*value.mean(0))])
    yield Table(["bandwidth", "weights of the five keys", "answer"], rows)
    yield code_of(pool)


def _draw(query: Any, key: Any, value: Any, weights: Any, answer: Any) -> Any:
    figure = plot.canvas.new(5.4, 2.9)
    left, right = figure.subplots(1, 2)
    hull = np.vstack([value, value[:1]])
    right.fill(hull[:, 0], hull[:, 1], color=palette.LINE, alpha=0.35, lw=0)
    right.plot(hull[:, 0], hull[:, 1], color=palette.MUTED, lw=0.8, ls=(0, (4, 3)))
    for axes, points, centre, colour, name in (
        (left, key, query, palette.QUERY, "query"),
        (right, value, answer, palette.ANSWER, "answer"),
    ):
        for place, (point, weight) in enumerate(zip(points, weights, strict=True), start=1):
            ends = np.stack([point, centre]).T
            axes.plot(*ends, color=palette.WEIGHT, lw=0.5 + 9 * weight, alpha=0.45, zorder=1,
                      solid_capstyle="round")  # fmt: skip
            side = "k" if axes is left else "v"
            axes.annotate(f"{side}{place}", point, (7, 5), textcoords="offset points", fontsize=10,
                          color=palette.KEY)  # fmt: skip
        axes.scatter(*points.T, s=30 + 260 * weights, color=palette.KEY, zorder=2, lw=0)
        axes.scatter(*centre, s=70, color=colour, zorder=3, marker="D", lw=0)
        axes.annotate(name, centre, (9, -4), textcoords="offset points", fontsize=10, color=colour,
                      fontweight="bold")  # fmt: skip
        axes.margins(0.17)
        axes.set_aspect("equal", adjustable="datalim")
        axes.set_axis_off()
    left.set_title("query and keys", fontsize=10, color=palette.MUTED)
    right.set_title("values and answer", fontsize=10, color=palette.MUTED)
    return figure
