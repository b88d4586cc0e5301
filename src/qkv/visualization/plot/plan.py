"""The cost of a plan, and why the other operators were not chosen."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from qkv.memory import readable
from qkv.plan import Plan, readable_flops
from qkv.visualization.plot import palette
from qkv.visualization.plot.canvas import new
from qkv.visualization.plot.labels import text_style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 7.5
_LINE = 0.21  # inches
_LETTERS = 86  # in a line of reasons


def plan(plan: Plan) -> Figure:
    """A plan's memory compared with that of all scores at once, and the reasons of operators.

    >>> import torch, qkv
    >>> x = torch.randn(4096, 64)
    >>> figure = qkv.plot.plan(qkv.explain(x, x, x))
    >>> [label.get_text() for label in figure.axes[0].get_yticklabels()]
    ['sdpa', 'all scores at once']
    """
    reasons = {plan.operator: plan.reason, **plan.rejected}
    lines = {name: textwrap.wrap(why, _LETTERS) for name, why in reasons.items()}
    tall = _LINE * sum(map(len, lines.values())) + 0.1
    title = textwrap.fill(plan.summary, _LETTERS)
    figure = new(_WIDTH, 1.6 + _LINE * title.count("\n") + tall)
    memory, story = figure.subplots(2, 1, height_ratios=[1.1, tall])
    _draw_memory(memory, plan)
    memory.set_title(title, loc="left", **text_style(10))
    _tell(story, plan.operator, lines)
    return figure


def _draw_memory(axes: Axes, plan: Plan) -> None:
    sizes = [plan.bytes, plan.dense_bytes]
    axes.barh([0, 1], sizes, color=[palette.WEIGHT, "#b0b7c0"])  # nothing for 0 bytes
    left = min(sizes) / 3 + 0.1
    for place, size in enumerate(sizes):
        axes.annotate(readable(size), (max(size, left), place), (4, 0), va="center", fontsize=9,
                      textcoords="offset points")  # fmt: skip
    axes.set_yticks([0, 1], [plan.operator, "all scores at once"])
    axes.set_xscale("log")
    axes.set_xlim(left, max(sizes) * 8 + 10)
    axes.set_xlabel(
        f"bytes beyond inputs and output; work {readable_flops(plan.flops)}", fontsize=9
    )
    axes.invert_yaxis()
    axes.minorticks_off()
    axes.tick_params(axis="y", length=0)
    axes.spines[["top", "right", "left"]].set_visible(False)


def _tell(axes: Axes, chosen: str, lines: dict[str, list[str]]) -> None:
    axes.set_axis_off()
    axes.set(xlim=(0, 1), ylim=(sum(map(len, lines.values())), 0))
    place = 0.5
    for name, why in lines.items():
        weight, colour = ("bold", palette.WEIGHT) if name == chosen else ("normal", "#3d4653")
        style = {"va": "center", "color": colour, **text_style(9)}
        axes.text(0, place, name, weight=weight, **style)
        for line in why:
            axes.text(0.12, place, line, **style)
            place += 1
