"""One query's weights as bars, a bar for each key."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from qkv.visualization.plot import labels, palette
from qkv.visualization.plot.canvas import new
from qkv.visualization.token_labels import WeightsLike, as_tokens, as_weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: Beyond so many bars their numbers would crowd.
_NUMBERED = 48


def row(weights: WeightsLike, keys: Sequence[str], query: str | None = None) -> Figure:
    """Weights (m,) of one query as bars, from the first key down to the last.

    >>> import qkv
    >>> figure = qkv.plot.row([0.1, 0.7, 0.2], ["the", "dog", "wagged"], query="tail")
    >>> [round(float(bar.get_width()), 1) for bar in figure.axes[0].patches]
    [0.1, 0.7, 0.2]
    """
    row_weights = as_weights(weights, "keys")
    names = as_tokens(keys, row_weights.size, "keys")
    pitch = min(0.24, max(0.07, 14 / row_weights.size))
    figure = new(4.2 + labels.room(names, labels.size_for(pitch)), row_weights.size * pitch + 0.8)
    axes = figure.add_subplot()
    bars = axes.barh(np.arange(row_weights.size), row_weights, height=0.78, color=palette.WEIGHT)
    if row_weights.size <= _NUMBERED:
        axes.bar_label(bars, [f"{weight:.3f}" for weight in row_weights], padding=3, fontsize=8)
    labels.name_ticks(axes.yaxis, names, pitch)
    axes.invert_yaxis()
    axes.margins(x=0.14, y=0.2 / row_weights.size)
    axes.set_xlim(left=0)
    axes.set_xlabel("weight")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    if query is not None:
        axes.set_title(f"what {labels.short(query)} looks at", **labels.text_style(11))
    return figure
