"""`{drawn}`: a block of Python whose last line is a figure, shown below its code at every build."""

from __future__ import annotations

import ast
import hashlib
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive, directives

_FOLDER = Path(__file__).parent / "_drawn"


class Drawn(Directive):
    """The code, and the figure that it drew."""

    has_content = True
    option_spec = {"alt": directives.unchanged_required}  # noqa: RUF012 - docutils wants a dict

    def run(self) -> list[nodes.Node]:
        source = "\n".join(self.content)
        name = f"{hashlib.sha256(source.encode()).hexdigest()[:12]}.svg"
        _FOLDER.mkdir(exist_ok=True)
        _figure(source).savefig(_FOLDER / name)
        code = nodes.literal_block(source, source, language="python")
        image = nodes.image(uri=f"/_drawn/{name}", alt=self.options.get("alt", "figure"))
        return [code, image]


def _figure(source: str) -> Any:
    """Run the lines; the last one is an expression, and its value the figure."""
    *lines, last = ast.parse(source).body
    assert isinstance(last, ast.Expr), "a block of {drawn} must end in a figure"
    names: dict[str, Any] = {}
    exec(compile(ast.Module(lines, []), "<drawn>", "exec"), names)
    return eval(compile(ast.Expression(last.value), "<drawn>", "eval"), names)


def setup(app: Any) -> dict[str, bool]:
    app.add_directive("drawn", Drawn)
    return {"parallel_read_safe": True}
