"""Tokens as labels: any text is drawn literally, and never parsed as a formula."""

from __future__ import annotations

import math
from functools import cache
from typing import TYPE_CHECKING, Any

from qkv.optional_dependencies import require

if TYPE_CHECKING:
    from matplotlib.axis import Axis

_LONGEST = 28
_POINTS_PER_INCH = 72

#: Visible symbols for what would break a line; other control characters have none.
_SIGNS = {"\n": "↵", "\r": "↵", "\t": "⇥"}

#: Fonts that draw what Matplotlib's own cannot, where they are installed.
_FALLBACKS = [
    "Noto Sans CJK SC", "Noto Sans CJK JP", "PingFang SC", "Hiragino Sans", "Microsoft YaHei",
    "WenQuanYi Zen Hei", "Noto Sans Arabic", "Noto Sans Hebrew", "Noto Sans Devanagari",
    "Noto Emoji", "Symbola",
]  # fmt: skip


def short(token: str) -> str:
    """The token on one line, without control characters, with a long one's middle elided."""
    token = "".join(_SIGNS.get(c, c if c.isprintable() else "\ufffd") for c in token)
    if len(token) <= _LONGEST:
        return token
    half = _LONGEST // 2
    return f"{token[:half]}…{token[1 - half :]}"


def text_style(size: float) -> dict[str, Any]:
    """Text properties of labels; `$` is a token like any other, not the start of a formula."""
    return {"fontsize": size, "parse_math": False, "fontfamily": ["sans-serif", *_installed()]}


def size_for(pitch: float) -> float:
    """The font size in points of labels that are `pitch` inches apart."""
    return min(10.0, max(6.0, 0.7 * pitch * _POINTS_PER_INCH))


def room(tokens: list[str] | None, size: float) -> float:
    """The approximate width of the longest label in inches."""
    longest = max(map(len, map(short, tokens)), default=0) if tokens else 4
    return 0.62 * size * longest / _POINTS_PER_INCH + 0.1


def name_ticks(axis: Axis, tokens: list[str] | None, pitch: float, **style: Any) -> None:
    """Label as many tokens as fit, `pitch` inches apart; without names, number them."""
    if tokens is None:
        axis.set_major_locator(require("matplotlib.ticker", "plot").MaxNLocator(integer=True))
        return
    size = size_for(pitch)
    step = math.ceil(size * 1.1 / _POINTS_PER_INCH / pitch)
    shown = range(0, len(tokens), step)
    axis.set_ticks(shown, [short(tokens[i]) for i in shown], **text_style(size), **style)


@cache
def _installed() -> list[str]:
    names = set(require("matplotlib.font_manager", "plot").get_font_names())
    return [name for name in _FALLBACKS if name in names]
