"""Who imports whom in the package, and its drawing in docs/architecture.md.

``python tests/import_graph.py`` draws it anew.
"""

from __future__ import annotations

import ast
from pathlib import Path

import qkv

SOURCE = Path(qkv.__file__).parent
PAGE = Path(__file__).parent.parent / "docs" / "architecture.md"
BEGIN, END = "```text\n", "```\n"

MODULES = {
    ".".join(("qkv", *path.relative_to(SOURCE).with_suffix("").parts)).removesuffix(
        ".__init__"
    ): path
    for path in SOURCE.rglob("*.py")
}


def imports(module: str, whole: bool = True) -> set[str]:
    """The modules of the package that a module imports; `whole`: also inside of functions."""
    tree = ast.parse(MODULES[module].read_text(encoding="utf-8"))
    nodes = list(ast.walk(tree)) if whole else tree.body
    targets: set[str] = set()
    for node in nodes:
        if isinstance(node, ast.Import):
            targets |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            # `from package import module`, or a name of the package itself
            full = {f"{node.module}.{alias.name}" for alias in node.names}
            targets |= (full & MODULES.keys()) or {node.module}
    return targets & MODULES.keys() - {module}


def room(module: str) -> str:
    """The folder or file directly under the package that a module belongs to."""
    return module.split(".")[1] if "." in module else module


def rooms() -> dict[str, set[str]]:
    """Which rooms each room imports; the package's own table of names is none."""
    graph: dict[str, set[str]] = {}
    for module in MODULES:
        if module != "qkv":
            targets = {room(each) for each in imports(module)}
            graph.setdefault(room(module), set()).update(targets - {room(module), "qkv"})
    return graph


def drawing() -> str:
    """Rooms by height, each with what it imports, without what that imports anyway."""
    graph = rooms()
    height: dict[str, int] = {}
    below: dict[str, set[str]] = {}

    def visit(name: str) -> None:
        if name in height:
            return
        for each in graph[name]:
            visit(each)
        height[name] = 1 + max((height[each] for each in graph[name]), default=-1)
        below[name] = graph[name].union(*(below[each] for each in graph[name]))

    for name in graph:
        visit(name)
    lines = []
    for name in sorted(graph, key=lambda each: (height[each], each)):
        direct = {x for x in graph[name] if not any(x in below[y] for y in graph[name])}
        arrow = f"  →  {', '.join(sorted(direct))}" if direct else ""
        lines.append(f"{height[name]:>2}  {name:<21}{arrow}".rstrip() + "\n")
    return "".join(lines)


def drawn() -> tuple[str, str, str]:
    """The page before the drawing, the drawing as it stands there, and the page behind it."""
    before, begin, rest = PAGE.read_text(encoding="utf-8").partition(BEGIN)
    drawing, end, behind = rest.partition(END)
    return before + begin, drawing, end + behind


if __name__ == "__main__":
    before, _, behind = drawn()
    PAGE.write_text(before + drawing() + behind, encoding="utf-8")
