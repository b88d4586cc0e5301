"""The shapes of kernels over distance."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from qkv.similarity import Boxcar, Epanechnikov, Gaussian, Laplacian, Triangular
from qkv.visualization.plot import palette
from qkv.visualization.plot.canvas import new

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_SHAPES = {
    Gaussian: r"$e^{-u^2/2}$",
    Laplacian: r"$e^{-u}$",
    Boxcar: r"$1$ where $u \leq 1$",
    Triangular: r"$\max(0,\, 1 - u)$",
    Epanechnikov: r"$\max(0,\, 1 - u^2)$",
}


def kernels() -> Figure:
    """Each kernel over the distance between query and key, in bandwidths.

    >>> import qkv
    >>> [axes.get_title().split()[0] for axes in qkv.plot.kernels().axes[:3]]
    ['Gaussian', 'Laplacian', 'Boxcar']
    """
    figure = new(2.1 * len(_SHAPES), 2.3)
    panels = figure.subplots(1, len(_SHAPES), sharey=True)
    # Twice 3 thousandths apart around ±1, where the boxcar falls.
    distance = torch.linspace(-3, 3, 2001, dtype=torch.float64)[:, None]
    query = torch.zeros(1, 1, dtype=torch.float64)
    for axes, (kernel, formula) in zip(panels, _SHAPES.items(), strict=True):
        height = kernel()(query, distance)[0]
        axes.fill_between(distance[:, 0], height, color=palette.WEIGHT, alpha=0.15, linewidth=0)
        axes.plot(distance[:, 0], height, color=palette.WEIGHT, linewidth=1.8)
        axes.set_title(f"{kernel.__name__}\n{formula}", fontsize=10)
        axes.set_xticks([-2, -1, 0, 1, 2])
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="y", linewidth=0.4, alpha=0.5)
    panels[0].set_ylabel("kernel")
    figure.supxlabel("(q − k) / bandwidth", fontsize=10)
    return figure
