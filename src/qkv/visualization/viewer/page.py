"""The view as one self-contained HTML page."""

from __future__ import annotations

import base64
import hashlib
import html
import json
from pathlib import Path
from typing import Any

STATIC = Path(__file__).parent / "static"

_BODY = "body { margin: 0 } .qkv-view { min-height: 100vh }"
_START = """const data = JSON.parse(document.getElementById("data").textContent);
render(document.getElementById("view"), data);"""

_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main id="view"><noscript>This view is drawn by JavaScript.</noscript></main>
<script type="application/json" id="data">{data}</script>
<script type="module">{script}</script>
</body>
</html>
"""


def page(data: dict[str, Any]) -> str:
    """The view of `data`, with its script, its style and a policy that blocks anything else."""
    script = f"{(STATIC / 'view.js').read_text(encoding='utf-8')}\n{_START}\n"
    style = f"{(STATIC / 'view.css').read_text(encoding='utf-8')}\n{_BODY}\n"
    policy = (
        f"default-src 'none'; script-src '{_digest(script)}'; style-src '{_digest(style)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    return _PAGE.format(
        policy=policy,
        title=html.escape(data["title"] or "Attention weights"),
        style=style,
        # Whatever a token holds, no tag can begin or end within the data.
        data=json.dumps(data).replace("<", "\\u003c"),
        script=script,
    )


def frame(data: dict[str, Any]) -> str:
    """The page in a sandboxed iframe, for notebooks without widgets."""
    return (
        f'<iframe srcdoc="{html.escape(page(data))}" sandbox="allow-scripts" '
        f'title="{html.escape(data["title"] or "Attention weights")}" '
        'width="100%" height="760" style="border: 0"></iframe>'
    )


def _digest(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
