"""Sphinx configuration; `make docs` builds with warnings as errors."""

import qkv

project = "qkv"
author = "The qkv authors"
version = release = qkv.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.mathjax", "sphinx.ext.napoleon"]
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_heading_anchors = 3
html_theme = "furo"
html_title = "qkv"
exclude_patterns = ["_build"]
autodoc_member_order = "bysource"
autodoc_typehints = "none"
autodoc_default_options = {"members": True, "show-inheritance": True}
