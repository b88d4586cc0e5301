"""Answers for people to read: in a terminal, in plain text, in a notebook."""

from __future__ import annotations

import html
from collections.abc import Iterable
from itertools import islice
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from qkv.table.answer import Answer

_BAR = 16
_MOST_VALUES, _MOST_COLUMNS = 5, 8


def said(value: Any) -> str:
    """A value as a person says it."""
    if isinstance(value, bool) or value is None:
        return "–" if value is None else str(value).lower()
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(said(part) for part in islice(value, 4))
        return f"[{inside}{', …' if len(value) > 4 else ''}]"
    text = str(value)
    return text if len(text) <= 60 else text[:59] + "…"


def headline(answer: Answer) -> str:
    """The question and its answer in one line."""
    asked = ", ".join(f"{name} = {said(entry)}" for name, entry in answer.query.items())
    if not answer.found:
        return f"{asked}  →  no {answer.column} found"
    if answer.distribution:
        weight = next(iter(answer.distribution.values()))
        return f"{asked}  →  {answer.column} {said(answer.value)} ({weight:.2f})"
    return f"{asked}  →  {answer.column} {said(answer.value)} ± {said(answer.std)}"


def footing(answer: Answer) -> str:
    """What the answer stands on."""
    used = answer.plan.rows_used or 0
    how = "; ".join(f"{name} {how}" for name, how in answer.plan.similarity.items())
    parts = [f"{said(answer.effective_rows)} effective of {used:,} rows", how]
    interval = answer.interval()
    if interval is not None:
        parts.insert(0, f"mean in {said(interval[0])} … {said(interval[1])} (90 %)")
    return " · ".join(parts)


def skipped(answer: Answer) -> str:
    """Which rows lacked something; empty if none did."""
    lacking = {name: count for name, count in answer.plan.missing.items() if count}
    told = ", ".join(f"{count:,} without {name}" for name, count in lacking.items())
    return f"skipped {told}" if lacking else ""


def as_rich(answer: Answer) -> Group:
    """The answer for a terminal."""
    colour = "bold green" if answer.found else "bold yellow"
    parts: list[Any] = [Text(headline(answer), style=colour), Text(footing(answer), style="dim")]
    if skipped(answer):
        parts.append(Text(skipped(answer), style="yellow"))
    if len(answer.distribution) > 1:
        parts.append(_distribution(answer))
    if answer.rows:
        parts.append(_rows(answer))
    return Group(*parts)


def as_text(answer: Answer, width: int = 110) -> str:
    """The answer as plain text."""
    console = Console(width=width, color_system=None, highlight=False, soft_wrap=False)
    with console.capture() as capture:
        console.print(as_rich(answer))
    return "\n".join(line.rstrip() for line in capture.get().rstrip().split("\n"))


def as_html(answer: Answer) -> str:
    """The answer for a notebook; whatever stands in the table is escaped."""
    small = "<br>".join(_safe(line) for line in (footing(answer), skipped(answer)) if line)
    body = [f"<p><b>{_safe(headline(answer))}</b><br><small>{small}</small></p>"]
    if len(answer.distribution) > 1:
        heavy = islice(answer.distribution.items(), _MOST_VALUES)
        body.append(
            _html_table([answer.column, "weight"], ([said(v), f"{w:.3f}"] for v, w in heavy))
        )
    if answer.rows:
        names = list(answer.rows[0])
        cells = ([said(row[name]) for name in names] for row in answer.rows)
        body.append(_html_table(names, cells))
    return f"<div>{''.join(body)}</div>"


def _distribution(answer: Answer) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1))
    for value, weight in islice(answer.distribution.items(), _MOST_VALUES):
        table.add_row(Text(said(value)), f"{weight:.3f}", Text(_bar(weight), style="green"))
    rest = sum(islice(answer.distribution.values(), _MOST_VALUES, None))
    if rest > 0.0005:
        more = len(answer.distribution) - _MOST_VALUES
        table.add_row(Text(f"{more:,} more", style="dim"), f"{rest:.3f}", "")
    return table


def _rows(answer: Answer) -> Table:
    weight, *columns = answer.rows[0]
    # Keys and the value first: these are what the question was about.
    first = [name for name in (*answer.query, answer.column) if name in columns]
    shown = list(dict.fromkeys([*first, *columns]))[:_MOST_COLUMNS]
    table = Table(box=None, padding=(0, 1), header_style="dim")
    table.add_column("rows that weighed most")
    for name in shown:
        numeric = isinstance(answer.rows[0][name], (int, float))
        table.add_column(Text(name), justify="right" if numeric else "left")
    most = max(row[weight] for row in answer.rows)
    for row in answer.rows:
        bar = Text(f"{row[weight]:<8.3g}") + Text(_bar(row[weight] / most), style="green")
        table.add_row(bar, *(Text(said(row[name])) for name in shown))
    return table


def _bar(share: float) -> str:
    eighths = round(max(0.0, min(1.0, share)) * _BAR * 8)
    return "█" * (eighths // 8) + " ▏▎▍▌▋▊▉"[eighths % 8].strip()


def _safe(text: str) -> str:
    return html.escape(text, quote=True)


def _html_table(names: list[str], rows: Iterable[list[str]]) -> str:
    head = "".join(f"<th>{_safe(name)}</th>" for name in names)
    body = "".join(
        "<tr>" + "".join(f"<td>{_safe(cell)}</td>" for cell in row) + "</tr>" for row in rows
    )
    return f"<table><tr>{head}</tr>{body}</table>"
