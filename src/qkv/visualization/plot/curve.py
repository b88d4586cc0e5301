"""Curves of answers with a confidence band."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from qkv.visualization.plot import canvas, palette

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MOST_NAMES = 12


class Curved(NamedTuple):
    """One line: a name, its answers, and the bounds of their confidence band."""

    name: str
    grid: Any  # (n,): numbers or times
    value: np.ndarray  # (n,); NaN where nothing was found
    low: np.ndarray
    high: np.ndarray


def curves(lines: Sequence[Curved], key_name: str, value_name: str, level: float) -> Figure:
    """All lines in one panel, each with its band."""
    figure = canvas.new(7.0, 4.5)
    axes = figure.subplots()
    for number, line in enumerate(lines):
        few = number < len(palette.SERIES)
        colour = palette.SERIES[number] if few else f"C{number % 10}"
        axes.fill_between(line.grid, line.low, line.high, color=colour, alpha=0.18, lw=0)
        axes.plot(line.grid, line.value, color=colour, lw=1.8, label=_plain(line.name))
    axes.set_xlabel(_plain(key_name))
    axes.set_ylabel(_plain(value_name))
    axes.set_title(f"bands: the mean, {level:.0%}", loc="left", fontsize=10)
    if 1 < len(lines) <= _MOST_NAMES:
        axes.legend(fontsize="small")
    canvas.tidy(axes)
    return figure


def _plain(text: str) -> str:
    """Text as it is: a dollar would start a formula."""
    return text.replace("$", r"\$")
