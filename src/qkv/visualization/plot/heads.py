"""The weights of many heads side by side, on one colour scale."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from qkv.visualization.plot import cells, labels
from qkv.visualization.plot.canvas import new
from qkv.visualization.token_labels import WeightsLike, as_tokens, as_weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure

#: The shortest and longest side of one head's matrix, in inches.
_SIDES = 1.2, 3.2

_ONE_ROW = 4


def heads(
    weights: WeightsLike,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    titles: Sequence[str] | None = None,
) -> Figure:
    """Weights (heads, n, m), a small matrix for each head; one colour scale for all.

    >>> import torch, qkv
    >>> x = torch.randn(6, 5, 8)
    >>> len(qkv.plot.heads(qkv.weights(x, x)).axes)  # six heads, one colour bar
    7
    """
    per_head = as_weights(weights, "heads", "queries", "keys")
    count, n, m = per_head.shape
    rows = None if queries is None else as_tokens(queries, n, "queries")
    columns = None if keys is None else as_tokens(keys, m, "keys")
    named = [f"head {i}" for i in range(count)] if titles is None else list(titles)
    if len(named) != count:
        raise ValueError(f"titles must name {count} heads, as weights has; got {len(named)}")

    across = count if count <= _ONE_ROW else math.ceil(math.sqrt(count))
    down = math.ceil(count / across)
    width, height = (min(_SIDES[1], max(_SIDES[0], 0.16 * size)) for size in (m, n))
    figure = new(
        across * (width + 0.15) + labels.room(rows, labels.size_for(height / n)) + 0.9,
        down * (height + 0.35) + labels.room(columns, labels.size_for(width / m)),
    )
    highest = cells.top_of(per_head)
    grid = figure.subplots(down, across, squeeze=False)
    for place, axes in enumerate(grid.flat):
        if place >= count:
            axes.remove()
            continue
        image = cells.draw(axes, per_head[place], rows, columns, (width / m, height / n), highest)
        axes.set_title(named[place], **labels.text_style(9))
        lowest = place + across >= count
        axes.tick_params(labelleft=place % across == 0, labelbottom=lowest)
    cells.bar(figure, image, figure.axes, down * height)
    return figure
