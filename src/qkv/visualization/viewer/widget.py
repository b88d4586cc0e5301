"""The view as a notebook widget: the same module, run by anywidget."""

from __future__ import annotations

import anywidget
import traitlets

from qkv.visualization.viewer.page import STATIC


class AttentionWidget(anywidget.AnyWidget):
    """Weights, tokens and names in `data`, drawn by `static/view.js`."""

    _esm = STATIC / "view.js"
    _css = STATIC / "view.css"
    data = traitlets.Dict().tag(sync=True)
