"""Weights as coloured cells, a row for each query: used by all figures of matrices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from qkv.visualization.plot import palette
from qkv.visualization.plot.canvas import new
from qkv.visualization.plot.labels import name_ticks, room, size_for, text_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.image import AxesImage

#: Up to so many rows and columns, cells have room for their numbers.
_NUMBERED = 16

#: From this share of the colours on, white stands out better than black.
_DARK = 0.848


def sheet(
    weights: npt.NDArray[np.float64],  # (n, m)
    queries: list[str] | None,
    keys: list[str] | None,
    highest: float,
) -> tuple[Figure, Axes]:
    """A figure of one matrix, sized by its tokens, with a colour bar."""
    n, m = weights.shape
    side = min(0.42, max(0.07, 11 / max(n, m)))
    width, height = (max(side, min(0.24, 1.6 / count)) for count in (m, n))  # no thin strips
    figure = new(
        max(2.6, m * width + room(queries, size_for(height)) + 1.2),
        max(1.9, n * height + room(keys, size_for(width)) + 0.7),
    )
    axes = figure.add_subplot()
    image = draw(axes, weights, queries, keys, (width, height), highest)
    bar(figure, image, [axes], n * height)
    return figure, axes


def draw(
    axes: Axes,
    weights: npt.NDArray[np.float64],  # (n, m)
    queries: list[str] | None,
    keys: list[str] | None,
    size: tuple[float, float],  # of a cell, in inches: width, height
    highest: float,
) -> AxesImage:
    """Cells from 0 to `highest`, their rows named by the queries, their columns by the keys."""
    image = axes.imshow(
        weights,
        cmap=palette.weights_map(),
        vmin=0,
        vmax=highest,
        aspect="auto",
        interpolation="nearest",
    )
    axes.set_facecolor("lightgrey")  # what shows where a weight is NaN
    upright = room(keys, size_for(size[0])) <= size[0]
    name_ticks(axes.xaxis, keys, size[0], rotation=0 if upright else 90)
    name_ticks(axes.yaxis, queries, size[1])
    axes.tick_params(length=2, color="grey")
    axes.spines[:].set_visible(False)
    return image


def bar(figure: Figure, image: AxesImage, axes: Sequence[Axes], height: float) -> None:
    """Add a colour bar to axes that are about `height` inches high."""
    colorbar = figure.colorbar(
        image, ax=axes, label="weight", fraction=0.05, pad=0.02, aspect=max(5, height / 0.16)
    )
    colorbar.ax.spines[:].set_visible(False)


def number(axes: Axes, weights: npt.NDArray[np.float64], highest: float) -> None:
    """Write each weight into its cell, where there is room."""
    if max(weights.shape) > _NUMBERED:
        return
    for (row, column), weight in np.ndenumerate(weights):
        colour = "white" if weight > _DARK * highest else "black"
        text = f"{weight:.2f}".removeprefix("0") if weight else "0"
        axes.text(column, row, text, ha="center", va="center", color=colour, **text_style(7))


def top_of(weights: npt.NDArray[np.float64]) -> float:
    """The end of the colour scale: the greatest weight, or 1 where all are 0."""
    return float(np.nanmax(weights, initial=0.0)) or 1.0
