"""The attention matrix: the weight of each key for each query."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from qkv.visualization.plot import cells, labels
from qkv.visualization.token_labels import WeightsLike, as_tokens, as_weights

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def matrix(
    weights: WeightsLike,
    queries: Sequence[str] | None = None,
    keys: Sequence[str] | None = None,
    title: str | None = None,
) -> Figure:
    """Weights (n, m) as coloured cells, a row for each query. Small ones show their numbers too.

    >>> import torch, qkv
    >>> words = ["the", "dog", "wagged", "its", "tail"]
    >>> x = torch.randn(5, 8)
    >>> figure = qkv.plot.matrix(qkv.weights(x, x), words, words, title="five words")
    >>> figure.axes[0].get_title()
    'five words'
    """
    array = as_weights(weights, "queries", "keys")
    n, m = array.shape
    rows = None if queries is None else as_tokens(queries, n, "queries")
    columns = None if keys is None else as_tokens(keys, m, "keys")
    highest = cells.top_of(array)
    figure, axes = cells.sheet(array, rows, columns, highest)
    cells.number(axes, array, highest)
    axes.set(xlabel="key", ylabel="query")
    if title is not None:
        axes.set_title(title, **labels.text_style(11))
    return figure
