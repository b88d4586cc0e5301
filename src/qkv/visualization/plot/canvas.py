"""What all figures share: their creation, and saving them to disk atomically."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qkv.atomic_write import replacing
from qkv.optional_dependencies import require
from qkv.visualization.plot import palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_FORMATS = [".pdf", ".png", ".svg"]


def new(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, apart from pyplot's global state."""
    figure: Figure = require("matplotlib.figure", "plot").Figure(
        figsize=(width, height), layout="constrained"
    )
    return figure


def save(figure: Figure, path: str | Path) -> None:
    """Write the figure in the format of its suffix; an interrupted write leaves no partial file."""
    path = Path(path)
    if path.suffix.lower() not in _FORMATS:
        raise ValueError(f"a plot's name must end in {', '.join(_FORMATS)}; got {path.name!r}")
    with replacing(path) as half:
        figure.savefig(half)


def tidy(axes: Axes) -> Axes:
    """Axes without a box, in muted colours."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(palette.LINE)
    axes.tick_params(color=palette.LINE, labelcolor=palette.MUTED, labelsize=9)
    axes.xaxis.label.set_color(palette.MUTED)
    axes.yaxis.label.set_color(palette.MUTED)
    return axes
