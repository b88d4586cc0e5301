"""Sphinx configuration; `make docs` builds with warnings as errors."""

import sys
from pathlib import Path

import qkv

sys.path.insert(0, str(Path(__file__).parent))

project = "qkv"
author = "The qkv authors"
version = release = qkv.__version__
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "charts",
    "drawn",
    "gallery_page",
    "mathml",
]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "qkv"
exclude_patterns = ["_build", "_gallery", "_drawn"]
html_math_renderer = "mathml"
html_extra_path = ["_gallery/page"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"members": True, "show-inheritance": True}
