"""`{chart}`: the ratios of a table of the page, drawn; the table is the one place for figures."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, NamedTuple

from docutils import nodes
from docutils.parsers.rst import Directive

from qkv.visualization import plot
from qkv.visualization.plot import palette

_FOLDER = Path(__file__).parent / "_drawn"
_RATIO = re.compile(r"([\d.]+)×")


class Bar(NamedTuple):
    label: str
    faster: float  # how many times as fast as the peer: 0.5 takes twice its time


def ratios(page: str, command: str) -> list[Bar]:
    """What the table of a command says against peers; rows without a ratio are left out."""
    (table,) = re.findall(
        rf"^\| `{re.escape(command)}`.*\n\|---\|---\|\n((?:\|.*\n?)+)", page, re.M
    )
    found, before = [], ""
    for line in table.splitlines():
        what, told = (cell.strip() for cell in line.strip("|").split("|"))
        what = re.sub(r"[`\[\]]|\(.*?\.md\)", "", what)
        if what.startswith("…"):
            what = f"{before}: {what.removeprefix('…').strip()}"
        else:
            before = re.split(r", (?![^(]*\))", what)[0]  # commas in brackets stay
        if "the time" in told:  # against itself, at another size
            continue
        slower = "its time" in told
        for ratio in _RATIO.findall(told.split(";")[0]):
            number = float(ratio)
            found.append(Bar(what, 1 / number if slower else number))
    return found


class Chart(Directive):
    """The table whose head names this command, as bars from 1 to the left or to the right."""

    required_arguments = 1
    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        source = Path(self.state.document.current_source)
        bars = ratios(source.read_text(encoding="utf-8"), self.arguments[0])
        _FOLDER.mkdir(exist_ok=True)
        name = self.arguments[0].replace(" ", "-")
        _draw(bars).savefig(_FOLDER / f"{name}.svg")
        alt = f"{self.arguments[0]}: " + "; ".join(f"{bar.label} {bar.faster:.3g}" for bar in bars)
        return [nodes.image(uri=f"/_drawn/{name}.svg", alt=alt)]


def _draw(bars: list[Bar]) -> Any:
    figure = plot.canvas.new(8.0, 0.55 + 0.27 * len(bars))
    axes = plot.canvas.tidy(figure.subplots())
    places = range(len(bars), 0, -1)
    colours = [palette.ANSWER if bar.faster >= 1 else palette.MUTED for bar in bars]
    axes.set_xscale("log")
    axes.barh(places, [bar.faster - 1 for bar in bars], 0.7, left=1, color=colours)
    for place, bar in zip(places, bars, strict=True):
        side = "left" if bar.faster >= 1 else "right"
        axes.annotate(
            f"{bar.faster:.3g}×", (bar.faster, place), (3 if side == "left" else -3, 0),
            textcoords="offset points", ha=side, va="center", fontsize=8,
        )  # fmt: skip
    axes.set_yticks(places, [_shortened(bar.label) for bar in bars], fontsize=8)
    axes.axvline(1, color=palette.MUTED, lw=0.8)
    least, most = (f(bar.faster for bar in bars) for f in (min, max))
    axes.set_xlim(min(0.8, least / 1.8), max(1.25, most * 1.8))
    low, high = axes.get_xlim()
    ticks = [tick for tick in (0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200) if low < tick < high]
    axes.set_xticks(ticks, [f"{tick:g}×" for tick in ticks], fontsize=8)
    axes.minorticks_off()
    axes.set_xlabel("as fast as the peer", fontsize=8)
    return figure


def _shortened(label: str) -> str:
    return label if len(label) <= 62 else f"{label[:60]}…"


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("chart", Chart)
    return {"parallel_read_safe": True}
