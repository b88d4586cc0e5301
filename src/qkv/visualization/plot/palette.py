"""One colour for one thing, in every figure: the same as in the explorer and in the view.

A page can replace these exact values by variables of its own, and so follow light and dark.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from qkv.optional_dependencies import require

GROUND, INK, MUTED, LINE = "#ffffff", "#20242c", "#59616e", "#dfe3e8"
QUERY, KEY, WEIGHT, ANSWER = "#b3430a", "#1f5fa8", "#7a2fa6", "#0b7350"

#: Lines without a role of their own, distinguishable also in greyscale.
SERIES = [ANSWER, KEY, QUERY, WEIGHT, MUTED]


@cache
def weights_map() -> Any:
    """A sequential colour map for weights: one hue, light to dark, safe for colour blindness."""
    make = require("matplotlib.colors", "plot").LinearSegmentedColormap
    return make.from_list("weights", [GROUND, "#dcc4ea", WEIGHT])
