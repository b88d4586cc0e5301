"""The parts of an example, which terminal, page and documentation render."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Drawing


@dataclass(frozen=True)
class Step:
    """The next step that takes a while: shown beside the progress bar, and not stored."""

    text: str


@dataclass(frozen=True)
class Result:
    """The finding in one line: each example has one."""

    text: str


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Table:
    """Rows of text under their columns' names."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    caption: str = ""


@dataclass(frozen=True)
class Figure:
    """A drawing, and in words what it shows."""

    drawing: Drawing
    caption: str


@dataclass(frozen=True)
class Code:
    """Lines of Python that can be copied and run."""

    source: str


Part: TypeAlias = Step | Result | Text | Table | Figure | Code


def code_of(function: Callable[..., Any]) -> Code:
    """The body of a function without its `return`: what is shown is what ran.

    Arguments have defaults, which stand below the imports.
    """
    lines, _ = inspect.getsourcelines(function)
    head = 1 + next(place for place, line in enumerate(lines) if line.rstrip().endswith(":"))
    *body, last = textwrap.dedent("".join(lines[head:])).rstrip().split("\n")
    below = 1 + max(n for n, line in enumerate(body) if line.startswith(("import ", "from ")))
    defaults = [f"{name} = {p.default!r}" for name, p in _arguments(function).items()]
    middle = ["", *defaults] if defaults else []
    return Code("\n".join([*body[:below], *middle, *body[below:], last.removeprefix("return ")]))


def _arguments(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(function).parameters
