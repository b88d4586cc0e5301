"""Kernel regression: what was fitted, and what each answer looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qkv.plot.canvas import new

if TYPE_CHECKING:
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
    """Fits side by side, and below each its weights, a row for each query."""
    figure = new(3.2 * len(fitted), 5.6)
    axes = figure.subplots(2, len(fitted), sharey="row", squeeze=False)
    for (above, below), panel in zip(axes.T, fitted, strict=True):
        above.scatter(x, y, s=9, color="0.6", label="examples")
        if truth is not None:
            above.plot(query, truth, color="0.3", lw=1, ls="--", label="truth")
        above.plot(query, panel.answer, color="C3", lw=2, label="answer")
        above.set_title(panel.name)
        above.set_xlabel("x")
        image = below.imshow(panel.weights, aspect="auto", cmap="viridis", origin="lower",
                             interpolation="nearest")  # fmt: skip
        below.set_xlabel("example, sorted by x")
        figure.colorbar(image, ax=below, shrink=0.9)
    axes[0, 0].set_ylabel("y")
    axes[0, 0].legend(fontsize="small")
    axes[1, 0].set_ylabel("query, sorted by x")
    return figure


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
    axes.scatter(x, y, s=12, color="0.55", label="examples", zorder=2)
    axes.fill_between(query, interval[:, 0], interval[:, 1], color="C0", alpha=0.2, lw=0,
                      label=f"{level:.0%} of new observations")  # fmt: skip
    axes.plot(query, answer, color="C0", lw=2, label="answer", zorder=3)
    axes.set_xlabel(names[0])
    axes.set_ylabel(names[1])
    axes.legend()
    finite = np.concatenate([np.ravel(y), interval[np.isfinite(interval)]])
    axes.set_ylim(finite.min() - 0.03 * np.ptp(finite), finite.max() + 0.03 * np.ptp(finite))
    return figure
