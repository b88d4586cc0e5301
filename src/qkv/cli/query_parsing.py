"""The words that `qkv query` is given, parsed to the types of the columns."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from qkv.table import Database

_LONGEST_LINE = 2**20


def keys_of_words(database: Database, words: list[str]) -> list[dict[str, Any]]:
    """Each word as one query: a key for each key column, with commas between several."""
    queries = []
    for word in words:
        parts = (
            [word] if len(database.key) == 1 else next(csv.reader([word], skipinitialspace=True))
        )
        if len(parts) != len(database.key):
            raise ValueError(
                f"a query must have a key for each of {', '.join(database.key)}; got {word!r}"
            )
        queries.append(_typed(database, dict(zip(database.key, parts, strict=True))))
    return queries


def keys_of_file(database: Database, path: Path) -> list[dict[str, Any]]:
    """Queries from a CSV file, by the names of its columns."""
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(_lines(file, path))
            for name in database.key:
                if name not in (reader.fieldnames or []):
                    raise ValueError(
                        f"{path.name!r} must have a column {name!r}, the name of the key"
                    )
            return [
                _typed(database, {name: row[name] or "" for name in database.key}) for row in reader
            ]
    except csv.Error as error:
        raise ValueError(f"{path.name!r} cannot be read as CSV: {error}") from error


def _lines(file: TextIO, path: Path) -> Iterator[str]:
    """The lines of a file, of which none may fill the memory."""
    number = 0
    while line := file.readline(_LONGEST_LINE + 1):
        number += 1
        if len(line) > _LONGEST_LINE:
            raise ValueError(
                f"{path.name!r}: line {number:,} is longer than {_LONGEST_LINE:,} characters"
            )
        yield line


def grid(database: Database, curve: str) -> list[Any]:
    """Evenly spaced keys, of ``FROM,TO,POINTS``."""
    low, high, points = (*[part.strip() for part in curve.split(",")], "", "", "")[:3]
    if curve.count(",") != 2 or not points.isdigit() or int(points) < 2:
        raise ValueError(f"--curve must be FROM,TO,POINTS, such as '2,4,50'; got {curve!r}")
    name = database.key[0]
    first, last = (_typed(database, {name: word})[name] for word in (low, high))
    steps = int(points) - 1
    try:
        return [first + (last - first) * (step / steps) for step in range(steps)] + [last]
    except TypeError as error:
        raise ValueError(f"--curve needs a key of numbers or dates; {name!r} is none") from error


def decay(database: Database, decay: str | None, as_of: str | None) -> tuple[Any, ...] | None:
    """The column of ages and its half-life, and the reference date where one is given."""
    from qkv.table.where import check_column

    if decay is None:
        if as_of is not None:
            raise ValueError("--as-of needs --decay, which says what ages")
        return None
    column, sign, text = decay.rpartition("=")
    if not sign:
        raise ValueError(f"--decay must be given as column=half-life; got {decay!r}")
    check_column(database.schema, column, "--decay")
    half_life: Any = text
    with contextlib.suppress(ValueError):
        half_life = float(text)
    if as_of is None:
        return column, half_life
    return column, half_life, _typed(database, {column: as_of})[column]


def for_keys(words: list[str], key: list[str], argument: str) -> dict[str, str]:
    """One word for each key column, or one for all."""
    if len(words) not in (1, len(key)):
        raise ValueError(f"--{argument} must be given once, or once for each of {', '.join(key)}")
    return dict(zip(key, words * (len(key) if len(words) == 1 else 1), strict=True))


def width(word: str) -> float:
    try:
        return float(word)
    except ValueError as error:
        raise ValueError(f"--bandwidth must be a number or '-'; got {word!r}") from error


def column_type(word: str) -> tuple[str, str]:
    column, sign, kind = word.rpartition("=")
    if not sign:
        raise ValueError(f"--type must be given as column=type; got {word!r}")
    return column, kind


def _typed(database: Database, words: dict[str, str]) -> dict[str, Any]:
    """Words by column, as the columns' types."""
    from qkv.table.columns import parsed

    return {
        name: parsed(word, database.schema.field(name).type, name) for name, word in words.items()
    }
