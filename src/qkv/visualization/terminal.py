"""Weights in a terminal: coloured tables and bars that fit its width."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.cells import cell_len, set_cell_size
from rich.text import Text

Weights = npt.NDArray[np.floating[Any]]

_LONGEST_LABEL = 16

#: Background colours of the least and the greatest weight; below this share of the greatest none.
_LOW, _HIGH, _FAINT = (112, 104, 124), (138, 43, 190), 0.08


def shade(share: float) -> str:
    """The style of a cell from 0 to 1: no background for tiny weights, then increasing purple.

    White on a background of medium lightness is legible in light and dark terminals, and in 16
    colours, where it becomes grey and magenta.
    """
    if not share >= _FAINT:
        return "dim"
    red, green, blue = (
        round(low + share * (high - low)) for low, high in zip(_LOW, _HIGH, strict=True)
    )
    return f"white on rgb({red},{green},{blue})"


def matrix(weights: Weights, queries: Sequence[str], keys: Sequence[str], width: int) -> Text:
    """The matrix (queries, keys) with a row for each query, in no more than `width` columns.

    Columns are headed by their keys if these fit; otherwise by their numbers, with the weights in
    per cent, and if necessary in several parts below each other.
    """
    named = [max(3, cell_len(key)) for key in keys]
    labels = _labels(queries, numbered=False)
    if cell_len(labels[0]) + sum(named) + len(named) <= width:
        return _part(weights, labels, list(keys), named, _fraction)
    labels = _labels(queries, numbered=True)
    cell = max(3, len(str(len(keys))))
    fitting = max(1, (width - cell_len(labels[0])) // (cell + 1))
    numbers = [str(number) for number in range(1, len(keys) + 1)]
    parts = [
        _part(weights[:, start:stop], labels, numbers[start:stop], [cell] * fitting, _percent)
        for start in range(0, len(keys), fitting)
        for stop in [start + fitting]
    ]
    caption = "" if list(queries) == list(keys) else _listed(keys)
    return Text("\n").join([*parts, Text(f"in per cent{caption}", style="dim")])


def bars(weights: Weights, keys: Sequence[str], width: int) -> Text:
    """One query's weights (keys,), a bar for each key."""
    labels = _labels(keys, numbered=False)
    room = max(1, width - cell_len(labels[0]) - len(" 0.00 "))
    peak = float(weights.max(initial=0.0)) or 1.0
    lines = [
        Text.assemble(
            label,
            f" {weight:.2f} ",
            (
                "█" * round(room * float(weight) / peak),
                f"rgb({_HIGH[0]},{_HIGH[1]},{_HIGH[2]})",
            ),
        )
        for label, weight in zip(labels, weights, strict=True)
    ]
    return Text("\n").join(lines)


def _part(
    weights: Weights, labels: list[str], heads: list[str], widths: list[int], number: Any
) -> Text:
    peak = float(weights.max(initial=0.0)) or 1.0
    blank = " " * cell_len(labels[0])
    lines = [Text(blank + "".join(f" {_right(h, w)}" for h, w in zip(heads, widths, strict=False)))]
    for label, row in zip(labels, weights, strict=True):
        line = Text(label)
        for weight, width in zip(row, widths, strict=False):
            line.append(" ")
            line.append(_right(number(weight), width), shade(float(weight) / peak))
        lines.append(line)
    return Text("\n").join(lines)


def _fraction(weight: float) -> str:
    return f"{weight:.2f}".removeprefix("0") if weight < 0.995 else "1.0"


def _percent(weight: float) -> str:
    return f"{100 * weight:.0f}"


def _labels(words: Sequence[str], numbered: bool) -> list[str]:
    digits = len(str(len(words)))
    plain = [f"{i:>{digits}} {word}" if numbered else word for i, word in enumerate(words, 1)]
    width = min(_LONGEST_LABEL, max(map(cell_len, plain), default=0))
    return [set_cell_size(word, width) for word in plain]


def _listed(keys: Sequence[str]) -> str:
    return "; keys: " + ", ".join(f"{number} {key}" for number, key in enumerate(keys, 1))


def _right(text: str, width: int) -> str:
    return " " * (width - cell_len(text)) + text


def rows(weights: Weights) -> Iterator[list[Text]]:
    """The cells of each row, for tables that hold more than weights."""
    for row in weights:
        yield [Text(f"{weight:.2f}", shade(float(weight))) for weight in row]
