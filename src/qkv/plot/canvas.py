"""What all figures share: how one is made, and how it reaches the disk whole."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from qkv.disk import replacing
from qkv.extras import need

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_FORMATS = [".pdf", ".png", ".svg"]


def new(width: float, height: float) -> Figure:
    """An empty figure of this size in inches, apart from pyplot's global state."""
    figure: Figure = need("matplotlib.figure", "plot").Figure(
        figsize=(width, height), layout="constrained"
    )
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write the figure in the format its name asks for; an interrupted write leaves no half."""
    if path.suffix.lower() not in _FORMATS:
        raise ValueError(f"a plot's name must end in {', '.join(_FORMATS)}; got {path.name!r}")
    with replacing(path) as half:
        figure.savefig(half)
