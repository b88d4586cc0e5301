"""An example in a terminal of 80 columns or more."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.syntax import Syntax
from rich.table import Table as RichTable
from rich.text import Text as RichText

from qkv.gallery.parts import Code, Figure, Result, Table, Text
from qkv.gallery.run import Shown

_WIDEST = 100


def show(console: Console, shown: Shown) -> None:
    """All parts of an example; figures are named, and drawn on the page."""
    width = min(console.width, _WIDEST)
    console.print(Rule(f"[bold]{shown.title}[/]", align="left"), width=width)
    console.print(f"{shown.name} · {shown.source}", style="dim", markup=False, highlight=False)
    if shown.skipped:
        console.print(f"skipped: {shown.skipped}", style="yellow", markup=False, highlight=False)
        return
    console.print(Padding(RichText(shown.caption), (1, 0)), width=width)
    for part in shown.parts:
        match part:
            case Result():
                console.print(part.text, style="bold", markup=False, highlight=False, width=width)
            case Text():
                console.print(part.text, markup=False, highlight=False, width=width)
            case Figure():
                caption = f"figure: {part.caption}"
                console.print(caption, style="dim", markup=False, highlight=False, width=width)
            case Table():
                console.print(_table(part), width=width)
            case Code():
                console.print(Padding(_code(part), (0, 0, 1, 2)), width=width)


def summary(console: Console, all_shown: Sequence[Shown]) -> None:
    """One line for each example."""
    table = RichTable(box=None, show_header=False, padding=(0, 1, 0, 0))
    longest = max(len(shown.name) for shown in all_shown)
    table.add_column(style="cyan", no_wrap=True, min_width=longest)
    table.add_column(overflow="ellipsis", no_wrap=True)
    for shown in all_shown:
        result = RichText(shown.result)
        if shown.skipped:
            result = RichText(f"skipped: {shown.skipped}", style="yellow")
        table.add_row(shown.name, result)
    console.print(table, width=min(console.width, _WIDEST))


def _table(part: Table) -> RichTable:
    table = RichTable(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 2, 0, 0))
    if part.caption:
        table.title, table.title_justify = part.caption, "left"
    for column in part.columns:
        table.add_column(RichText(column), overflow="fold")
    for row in part.rows:
        table.add_row(*map(RichText, row))
    return table


def _code(part: Code) -> Syntax:
    return Syntax(
        part.source, "python", theme="ansi_light", background_color="default", word_wrap=True
    )
