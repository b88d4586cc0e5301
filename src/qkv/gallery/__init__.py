"""The source material's examples, one file each. A file's docstring is its title and caption.

`parts()` of a file yields its results: see :mod:`qkv.gallery.parts`.
"""

from __future__ import annotations

#: In the order of presentation.
EXAMPLES = [
    "database",
    "gpa",
    "convex",
    "regression",
    "widths",
    "distance",
    "similarities",
    "scaling",
    "step_by_step",
    "tokens",
    "dog",
    "blank",
    "heads",
    "multihead",
    "sparse",
    "fixed_state",
    "dates",
    "own_similarity",
]
