"""Answers as readable output: in a terminal, in plain text, in a notebook."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from qkv.table.answers import Answers

if TYPE_CHECKING:
    from qkv.table.answer import Answer
    from qkv.table.curve import Curve

_BAR = 16
_MOST_VALUES, _MOST_COLUMNS, _MOST_LINES = 5, 8, 40
_MOST_POINTS = 12


def formatted(value: Any) -> str:
    """A value as readable text."""
    if isinstance(value, bool) or value is None:
        return "–" if value is None else str(value).lower()
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"
    if isinstance(value, (list, tuple)):
        inside = ", ".join(formatted(part) for part in islice(value, 4))
        return f"[{inside}{', …' if len(value) > 4 else ''}]"
    text = str(value)
    return text if len(text) <= 60 else text[:59] + "…"


def headline(answer: Answer) -> str:
    """The question and its answer in one line."""
    query = _query(answer.query)
    if not answer.found:
        return f"{query}  →  no {answer.column} found"
    return f"{query}  →  {answer.column} {_short(answer)}"


def footing(answer: Answer) -> str:
    """What the answer is based on."""
    used = answer.plan.rows_used or 0
    compared = "; ".join(f"{name} {how}" for name, how in answer.plan.similarity.items())
    parts = [f"{formatted(answer.effective_rows)} effective of {used:,} rows", compared]
    interval = answer.interval()
    if interval is not None:
        parts.insert(0, f"mean in {formatted(interval[0])} … {formatted(interval[1])} (90 %)")
    elif answer.effective_rows == 1.0 and not answer.distribution:
        parts.insert(0, "no interval: it needs more than one effective row")
    return " · ".join(parts)


def skipped(answer: Answer) -> str:
    """Which rows lacked something; empty if none did."""
    missing = {name: count for name, count in answer.plan.missing.items() if count}
    counts = ", ".join(f"{count:,} without {name}" for name, count in missing.items())
    return f"skipped {counts}" if missing else ""


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


def in_text(report: Any, width: int = 110) -> str:
    """What a terminal would show, as plain text."""
    console = Console(width=width, color_system=None, highlight=False, soft_wrap=False)
    with console.capture() as capture:
        console.print(report)
    return "\n".join(line.rstrip() for line in capture.get().rstrip().split("\n"))


def as_html(answer: Answer) -> str:
    """The answer for a notebook; whatever stands in the table is escaped."""
    small = "<br>".join(_safe(line) for line in (footing(answer), skipped(answer)) if line)
    body = [f"<p><b>{_safe(headline(answer))}</b><br><small>{small}</small></p>"]
    if len(answer.distribution) > 1:
        heavy = islice(answer.distribution.items(), _MOST_VALUES)
        body.append(
            _html_table([answer.column, "weight"], ([formatted(v), f"{w:.3f}"] for v, w in heavy))
        )
    if answer.rows:
        names = list(answer.rows[0])
        cells = ([formatted(row[name]) for name in names] for row in answer.rows)
        body.append(_html_table(names, cells))
    return f"<div>{''.join(body)}</div>"


def answers_as_rich(answers: Answers) -> Group:
    """Many answers for a terminal, a line each."""
    names, lines = _grid(answers)
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name in names:
        table.add_column(Text(name), justify="left" if name in answers.names else "right")
    for line in lines:
        table.add_row(*(Text(cell) for cell in line))
    parts: list[Any] = [Text(_title(answers), style="bold green"), table]
    if len(answers) > len(lines):
        parts.append(Text(f"{len(answers) - len(lines):,} more", style="dim"))
    return Group(*parts)


def answers_as_html(answers: Answers) -> str:
    """Many answers for a notebook; whatever stands in the table is escaped."""
    return f"<div><p><b>{_safe(_title(answers))}</b></p>{_html_table(*_grid(answers))}</div>"


def curve_as_rich(curve: Curve) -> Group:
    """A curve for a terminal: some of its points, evenly drawn."""
    places = [round(i * (len(curve) - 1) / (_MOST_POINTS - 1)) for i in range(_MOST_POINTS)]
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for name in (curve.key, curve.column, "mean in (90 %)", "effective rows"):
        table.add_column(Text(name), justify="right")
    interval = curve.interval()
    for place in dict.fromkeys(places) if len(curve) else []:
        value, std = float(curve.value[place]), float(curve.std[place])
        low, high = map(float, interval[place])
        table.add_row(
            Text(formatted(curve.grid[place].as_py())),
            "–" if math.isnan(value) else f"{formatted(value)} ± {formatted(std)}",
            "" if math.isnan(low) else f"{formatted(low)} … {formatted(high)}",
            formatted(float(curve.effective_rows[place])),
        )
    similarities = "; ".join(
        f"{name} {similarities}" for name, similarities in curve.plan.similarity.items()
    )
    head = f"{curve.column} along {curve.key}, {len(curve):,} points"
    return Group(Text(head, style="bold green"), Text(similarities, style="dim"), table)


def _title(answers: Answers) -> str:
    """The question, and how many answers it has."""
    plural = "" if len(answers) == 1 else "s"
    count = f"{len(answers):,} answer{plural}"
    return f"{_query(answers.query)}  →  {count} by {', '.join(answers.names)}"


def _grid(answers: Answers) -> tuple[list[str], list[list[str]]]:
    """The names of columns, and lines of cells: of the first answers, where there are many."""
    first = list(islice(answers.items(), _MOST_LINES))
    labels = [[formatted(entry) for entry in answers.labels(label).values()] for label, _ in first]
    if first and isinstance(first[0][1], Answers):  # a cell for each value column
        inner = list(first[0][1])
        names, cells = (
            inner,
            [[_short(inner_answers[name]) for name in inner] for _, inner_answers in first],
        )
    else:
        names = ["value", "mean in (90 %)", "effective rows"]
        cells = [
            [
                _short(inner_answers),
                " … ".join(map(formatted, inner_answers.interval() or ())),
                formatted(inner_answers.effective_rows),
            ]
            for _, inner_answers in first
        ]
    lines = [[*label, *rest] for label, rest in zip(labels, cells, strict=True)]
    return [*answers.names, *names], lines


def _short(answer: Answer) -> str:
    """An answer in one cell."""
    if not answer.found:
        return "–"
    if answer.distribution:
        return f"{formatted(answer.value)} ({next(iter(answer.distribution.values())):.2f})"
    spread = f"± {formatted(answer.std)}" if answer.effective_rows > 1.0 else "(one row)"
    return f"{formatted(answer.value)} {spread}"


def _query(query: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {formatted(entry)}" for name, entry in query.items())


def _distribution(answer: Answer) -> Table:
    table = Table(box=None, show_header=False, padding=(0, 1))
    for value, weight in islice(answer.distribution.items(), _MOST_VALUES):
        table.add_row(Text(formatted(value)), f"{weight:.3f}", Text(_bar(weight), style="green"))
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
        table.add_row(bar, *(Text(formatted(row[name])) for name in shown))
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
