"""The source material's examples, one file each. A file's docstring is its caption."""

from __future__ import annotations

import importlib

from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule

from qkv.plan import Plan

#: In the order of the telling.
EXAMPLES = [
    "hard_lookup",
    "gpa",
    "regression",
    "tokens",
    "dog",
    "step_by_step",
    "scaling",
    "similarities",
    "multihead",
    "heads",
    "fixed_state",
    "dates",
]


def print_plan(console: Console, plan: Plan) -> None:
    """What was computed by which operator."""
    console.print(str(plan), markup=False, highlight=False, soft_wrap=True)


def show(console: Console, names: list[str]) -> None:
    """Run the examples named, or all of them, and show what they found."""
    for name in names:
        if name not in EXAMPLES:
            raise ValueError(f"an example must be one of {', '.join(EXAMPLES)}; got {name!r}")
    for name in names or EXAMPLES:
        example = importlib.import_module(f"qkv.gallery.{name}")
        title, _, caption = (example.__doc__ or "").strip().partition("\n\n")
        console.print(Rule(f"[bold]{title}[/] [dim]({name})[/]", align="left"))
        console.print(Padding(" ".join(caption.split()), (0, 0, 1, 0)), style="italic")
        example.show(console)
        console.print()
