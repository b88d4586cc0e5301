"""A figure of a soft look-up: the weights of a table's keys in an answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from qkv.visualization.plot import canvas, palette

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_BARS = 12


def soft_lookup(
    keys: np.ndarray | list[str],
    values: np.ndarray | list[str],
    weights: np.ndarray,
    query: Any,
    answer: Any,
    spread: float | None,
    key_name: str,
    value_name: str,
) -> Figure:
    """Weights over keys, below their values, with the query and its answer marked.

    Keys on a scale are dots and a filled curve; keys that are words are bars, the heaviest first.
    """
    if isinstance(keys, list):
        return _bars(keys, values, weights, query, answer, key_name, value_name)
    figure = canvas.new(5.6, 4.0)
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=[3, 1])
    order = np.argsort(keys, kind="stable")
    _dots(above, keys[order], values, weights[order], order)
    if answer is not None and not isinstance(values, list) and isinstance(answer, float):
        if spread is not None:
            above.axhspan(answer - spread, answer + spread, color=palette.ANSWER, alpha=0.08, lw=0)
        above.axhline(answer, color=palette.ANSWER, lw=1)
        above.plot([query], [answer], "o", color=palette.ANSWER, ms=8, zorder=5)
    says = "nothing found" if answer is None else _formatted(answer)
    above.set_title(
        _plain(f"{key_name} {_formatted(query)} → {value_name} {says}", 90), loc="left", fontsize=11
    )
    above.set_ylabel(_plain(value_name))
    below.fill_between(keys[order], weights[order], color=palette.WEIGHT, alpha=0.35, lw=0)
    below.plot(keys[order], weights[order], color=palette.WEIGHT, lw=1)
    below.set_ylim(0, 1.08)
    below.set_ylabel("weight")
    below.set_xlabel(_plain(key_name))
    for axes in (above, below):
        axes.axvline(query, color=palette.QUERY, lw=1, ls=":")
        canvas.tidy(axes)
    return figure


def _dots(
    axes: Axes,
    keys: np.ndarray,
    values: np.ndarray | list[str],
    weights: np.ndarray,
    order: np.ndarray,
) -> None:
    """Each row a dot, darker with more weight."""
    heights: Any = [values[place] for place in order]
    if isinstance(values, list):  # too many names would hide each other: the heaviest are shown
        mass: dict[str, float] = {}
        for name, weight in zip(heights, weights, strict=True):
            mass[name] = mass.get(name, 0.0) + weight
        shown = sorted(mass, key=lambda name: -mass[name])[:_MOST_BARS]
        places = [place for place, name in enumerate(heights) if name in shown]
        keys, weights = keys[places], weights[places]
        heights = [_plain(heights[place]) for place in places]
    strength = np.sqrt(weights)  # so that small weights are still seen
    axes.scatter(keys, heights, s=9, color=palette.MUTED, alpha=0.35, lw=0)
    axes.scatter(keys, heights, s=8 + 30 * strength, color=palette.KEY, alpha=strength * 0.9, lw=0)


def _bars(
    keys: list[str],
    values: np.ndarray | list[str],
    weights: np.ndarray,
    query: Any,
    answer: Any,
    key_name: str,
    value_name: str,
) -> Figure:
    order = [int(place) for place in np.argsort(-weights, kind="stable")[:_MOST_BARS]]
    total = weights.sum()
    shares = weights[order] / total if total > 0 else weights[order]
    figure = canvas.new(7.0, 1.2 + 0.3 * max(len(order), 1))
    axes = figure.subplots()
    axes.barh(range(len(order)), shares, color=palette.WEIGHT, height=0.7)
    axes.set_yticks(range(len(order)), [_plain(keys[place]) for place in order])
    for row, place in enumerate(order):
        chosen = values[place] == answer
        axes.annotate(
            _plain(_formatted(values[place])),
            (shares[row], row),
            (6, 0),
            textcoords="offset points",
            va="center",
            color=palette.ANSWER if chosen else palette.MUTED,
            fontweight="bold" if chosen else "normal",
            fontsize=9,
        )
    axes.invert_yaxis()
    axes.set_xlim(0, 1.25 * max(float(shares.max(initial=0.0)), 1e-12))
    axes.set_xlabel(f"weight; beside it the {_plain(value_name)}")
    says = "nothing found" if answer is None else _formatted(answer)
    title = f"{key_name} {_formatted(query)} → {value_name} {says}"
    axes.set_title(_plain(title, 90), loc="left", fontsize=11)
    canvas.tidy(axes)
    return figure


def _formatted(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return str(value)


def _plain(text: str, most: int = 40) -> str:
    """Text as it is: a dollar would start a formula."""
    short = text if len(text) <= most else text[: most - 1] + "…"
    return short.replace("$", r"\$")
