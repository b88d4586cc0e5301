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
    found = as_weights(weights, "keys")
    names = as_tokens(keys, found.size, "keys")
    pitch = min(0.24, max(0.07, 14 / found.size))
    figure = new(4.2 + labels.room(names, labels.size_for(pitch)), found.size * pitch + 0.8)
    axes = figure.add_subplot()
    bars = axes.barh(np.arange(found.size), found, height=0.78, color=palette.WEIGHT)
    if found.size <= _NUMBERED:
        axes.bar_label(bars, [f"{weight:.3f}" for weight in found], padding=3, fontsize=8)
    labels.name_ticks(axes.yaxis, names, pitch)
    axes.invert_yaxis()
    axes.margins(x=0.14, y=0.2 / found.size)
    axes.set_xlim(left=0)
    axes.set_xlabel("weight")
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)
    if query is not None:
        axes.set_title(f"what {labels.short(query)} looks at", **labels.text_style(11))
    return figure
