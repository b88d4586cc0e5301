"""A figure as inline SVG that follows the page's light and dark theme."""

from __future__ import annotations

import io
import re

from qkv.gallery.parts import Figure
from qkv.optional_dependencies import require
from qkv.visualization.plot import palette

#: The colours of figures, and the page's variables that take their place.
_VARIABLES = {
    palette.GROUND: "--ground",
    palette.INK: "--ink",
    "#000000": "--ink",
    palette.MUTED: "--muted",
    palette.LINE: "--line",
    palette.QUERY: "--query",
    palette.KEY: "--key",
    palette.WEIGHT: "--weight",
    palette.ANSWER: "--answer",
}

_SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "qkv"}


def as_svg(figure: Figure, name: str) -> str:
    """The drawing with unique ids, so that several can share a page."""
    written = io.StringIO()
    with require("matplotlib", "plot").rc_context(_SETTINGS):
        figure.drawing.savefig(written, format="svg", metadata={"Date": None}, transparent=True)
    svg = written.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>|<!--.*?-->", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(url\(#|href="#)', rf"\1{name}-", svg)
    svg = re.sub(r"#[0-9a-f]{6}\b", _variable, svg)
    svg = re.sub(r"font: ([^;']*?)(\d[\d.]*px)[^;\"]*", r"font: \1\2 system-ui, sans-serif", svg)
    return re.sub(r"<style.*?</style>", "", svg, flags=re.DOTALL)


def _variable(colour: re.Match[str]) -> str:
    name = _VARIABLES.get(colour.group())
    return colour.group() if name is None else f"var({name})"
