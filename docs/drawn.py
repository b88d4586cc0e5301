"""`{drawn}`: Python whose last line is a figure or a view, which every build shows below it."""

from __future__ import annotations

import ast
import hashlib
import html
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive, directives

import qkv

_FOLDER = Path(__file__).parent / "_drawn"
_VIEWS = Path(__file__).parent / "_gallery" / "page" / "views"  # copied beside the pages as it is


class Drawn(Directive):
    """The code, and the figure that it drew."""

    has_content = True
    option_spec = {"alt": directives.unchanged_required}  # noqa: RUF012 - docutils wants a dict

    def run(self) -> list[nodes.Node]:
        source = "\n".join(self.content)
        name = hashlib.sha256(source.encode()).hexdigest()[:12]
        code = nodes.literal_block(source, source, language="python")
        drawn, alt = _value(source), self.options.get("alt", "figure")
        if isinstance(drawn, qkv.View):
            _VIEWS.mkdir(parents=True, exist_ok=True)
            drawn.save(_VIEWS / f"{name}.html")
            frame = (
                f'<iframe src="views/{name}.html" title="{html.escape(alt)}" width="100%" '
                'height="620" style="border: 0" loading="lazy"></iframe>'
            )
            return [code, nodes.raw("", frame, format="html")]
        _FOLDER.mkdir(exist_ok=True)
        drawn.savefig(_FOLDER / f"{name}.svg")
        return [code, nodes.image(uri=f"/_drawn/{name}.svg", alt=alt)]


def _value(source: str) -> Any:
    """Run the lines; the last one is an expression, and its value what is shown."""
    *lines, last = ast.parse(source).body
    assert isinstance(last, ast.Expr), "a block of {drawn} must end in a figure"
    names: dict[str, Any] = {}
    exec(compile(ast.Module(lines, []), "<drawn>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<drawn>", "eval"), names)


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("drawn", Drawn)
    return {"parallel_read_safe": True}
