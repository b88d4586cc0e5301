"""Kernel regression: fits, and the weights of their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qkv.visualization.plot import palette
from qkv.visualization.plot.canvas import new, tidy

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Array = npt.NDArray[Any]


class Fitted(NamedTuple):
    """One panel: a name, the answers to the queries, and their weights on the keys."""

    name: str
    answer: Array  # (n,)
    weights: Array  # (n, m), keys in ascending order


def fits(
    x: Array, y: Array, query: Array, fitted: Sequence[Fitted], truth: Array | None = None
) -> Figure:
    """Fits side by side, two or three in a row, and below each its weights, a row per query."""
    across = min(len(fitted), 2 if len(fitted) == 4 else 3)
    down = -(-len(fitted) // across)
    figure = new(2.6 * across + 0.3, 3.9 * down)
    for figure_row, panels in zip(
        figure.subfigures(down, 1, squeeze=False)[:, 0],
        (fitted[start : start + across] for start in range(0, len(fitted), across)),
        strict=True,
    ):
        axes = figure_row.subplots(2, across, sharey="row", squeeze=False, height_ratios=[1.25, 1])
        for above, below in axes.T[len(panels) :]:
            above.remove()
            below.remove()
        for (above, below), panel in zip(axes.T, panels, strict=False):
            _fit(tidy(above), x, y, query, panel, truth)
            below.imshow(panel.weights, aspect="auto", cmap=palette.weights_map(), origin="lower",
                         interpolation="nearest", vmin=0)  # fmt: skip
            tidy(below).set_xlabel("sample, sorted by x", fontsize=9)
            below.set_yticks([])
        axes[0, 0].set_ylabel("y", fontsize=9)
        axes[1, 0].set_ylabel("query", fontsize=9)
        axes[0, 0].legend(fontsize=8, frameon=False, handlelength=1.4)
    return figure


def _fit(axes: Axes, x: Array, y: Array, query: Array, panel: Fitted, truth: Array | None) -> None:
    axes.scatter(x, y, s=8, color=palette.KEY, alpha=0.45, lw=0, label="examples")
    if truth is not None:
        axes.plot(query, truth, color=palette.MUTED, lw=1, ls="--", label="truth")
    axes.plot(query, panel.answer, color=palette.ANSWER, lw=2, label="answer")
    axes.set_title(panel.name, fontsize=10)


def band(
    x: Array,
    y: Array,
    query: Array,
    answer: Array,
    interval: Array,
    *,
    names: tuple[str, str] = ("x", "y"),
    level: float = 0.9,
) -> Figure:
    """The examples, the curve of answers, and the band in which new observations should fall."""
    figure = new(7, 4.5)
    axes = figure.subplots()
    axes.scatter(x, y, s=12, color=palette.KEY, alpha=0.5, lw=0, label="examples", zorder=2)
    axes.fill_between(query, interval[:, 0], interval[:, 1], color=palette.ANSWER, alpha=0.15, lw=0,
                      label=f"{level:.0%} of new observations")  # fmt: skip
    axes.plot(query, answer, color=palette.ANSWER, lw=2, label="answer", zorder=3)
    axes.set_xlabel(names[0])
    axes.set_ylabel(names[1])
    axes.legend()
    finite = np.concatenate([np.ravel(y), interval[np.isfinite(interval)]])
    axes.set_ylim(finite.min() - 0.03 * np.ptp(finite), finite.max() + 0.03 * np.ptp(finite))
    return figure
