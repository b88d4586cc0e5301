"""How long several ways take, by length, as examples draw it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from qkv.visualization import plot


def by_length(lengths: Sequence[int], times: dict[str, list[float]], colours: Sequence[str]) -> Any:
    """A figure of seconds for each way and length, both axes logarithmic."""
    figure = plot.canvas.new(5.2, 2.5)
    axes = plot.canvas.tidy(figure.subplots())
    for (name, seconds), colour in zip(times.items(), colours, strict=True):
        milliseconds = [1e3 * each for each in seconds]
        axes.plot(lengths, milliseconds, "o-", color=colour, ms=4, lw=1.8)
        axes.annotate(name, (lengths[-1], milliseconds[-1]), (-6, 8), textcoords="offset points",
                      ha="right", color=colour, fontsize=10)  # fmt: skip
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
    axes.minorticks_off()
    axes.set_xlabel("tokens", fontsize=9)
    axes.set_ylabel("milliseconds", fontsize=9)
    return figure
