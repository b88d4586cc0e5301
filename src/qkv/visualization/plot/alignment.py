"""Alignment: the attention of each target word to the source words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from qkv.optional_dependencies import require
from qkv.visualization.plot import cells, palette
from qkv.visualization.token_labels import WeightsLike, as_tokens, as_weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def alignment(weights: WeightsLike, source: Sequence[str], target: Sequence[str]) -> Figure:
    """Weights (target, source): the source along the top, the target downwards.

    A frame marks the source word with the largest weight for each target word.

    >>> import qkv
    >>> figure = qkv.plot.alignment([[0.9, 0.1], [0.2, 0.8]], ["good", "day"], ["guten", "Tag"])
    >>> [label.get_text() for label in figure.axes[0].get_xticklabels()]
    ['good', 'day']
    """
    matrix = as_weights(weights, "target", "source")
    n, m = matrix.shape
    rows, columns = as_tokens(target, n, "target"), as_tokens(source, m, "source")
    figure, axes = cells.sheet(matrix, rows, columns, highest=1.0)
    frame = require("matplotlib.patches", "plot").Rectangle
    for place in np.flatnonzero(np.nan_to_num(matrix).any(axis=1)):
        best = int(np.nanargmax(matrix[place]))
        corner = best - 0.5, place - 0.5
        axes.add_patch(frame(corner, 1, 1, fill=False, edgecolor=palette.QUERY, linewidth=1.2))
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.set(xlabel="source", ylabel="target")
    return figure
