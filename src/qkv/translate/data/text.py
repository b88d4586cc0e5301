"""Pairs of sentences, read from files; unusable lines are counted and reported."""

from __future__ import annotations

import gzip
import io
import unicodedata
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias, get_args

from qkv.unpacked import unpacked

#: How the many ways to write one letter become one; "nfkc" also unites look-alikes.
Form: TypeAlias = Literal["nfc", "nfkc", "none"]

#: Longer lines are not sentences.
MAX_CHARACTERS = 10_000
#: A line may hold more than two sentences, but not more bytes than this.
MAX_LINE = 2**20
#: A file with more lines that cannot be used is not one of sentences.
MAX_SKIPPED = 10**6

_NAMED_LINES = 5

#: Marks the end of a file; no line can hold it.
_END = "\n"


class Pair(NamedTuple):
    source: str
    target: str


@dataclass
class SkippedLines:
    """Which lines could not be used, by the reason why."""

    lines: dict[str, list[int]] = field(default_factory=dict)

    def add(self, reason: str, line: int) -> None:
        lines = self.lines.setdefault(reason, [])
        lines.append(line)
        if len(lines) > MAX_SKIPPED:
            raise ValueError(f"more than {MAX_SKIPPED:,} lines are {reason}")

    def __len__(self) -> int:
        return sum(len(lines) for lines in self.lines.values())

    def __str__(self) -> str:
        return "; ".join(
            f"{len(lines):,} {reason} (line{'s' * (len(lines) > 1)} {_some(lines)})"
            for reason, lines in self.lines.items()
        )


class Corpus(NamedTuple):
    pairs: list[Pair]
    lines: list[int]  # where each pair stood, from 1
    skipped: SkippedLines


def normalized(text: str, form: Form = "nfc") -> str:
    """One way to write each letter, and one space where there was any white space.

    >>> normalized("un\\u202fcafe\\u0301\\u00a0!")
    'un café !'
    """
    if form not in get_args(Form):
        raise ValueError(
            f"normalization must be one of {', '.join(get_args(Form))}; got {form!r:.80}"
        )
    if form != "none":
        text = unicodedata.normalize("NFC" if form == "nfc" else "NFKC", text)
    return " ".join(text.split())


def read_pairs(path: Path, form: Form = "nfc") -> Corpus:
    """A file of lines `source<TAB>target`, plain or gzipped; further columns are passed over."""
    pairs, numbers, skipped = [], [], SkippedLines()
    for number, line in enumerate(_lines(path), start=1):
        columns = [None, None] if line is None else line.split("\t")[:2]
        reason = _fault(columns)
        if reason:
            skipped.add(reason, number)
            continue
        left, right = columns
        pairs.append(Pair(normalized(left or "", form), normalized(right or "", form)))
        numbers.append(number)
    return _usable(Corpus(pairs, numbers, skipped), str(path))


def read_parallel(source: Path, target: Path, form: Form = "nfc") -> Corpus:
    """Two files that are translations of each other line by line, plain or gzipped."""
    pairs, numbers, skipped = [], [], SkippedLines()
    lines = zip_longest(_lines(source), _lines(target), fillvalue=_END)
    for number, (left, right) in enumerate(lines, start=1):
        if left is _END or right is _END:
            longer, shorter = (source, target) if right is _END else (target, source)
            raise ValueError(
                f"{source} and {target} must have as many lines; {shorter.name} ends after "
                f"{number - 1:,} and {longer.name} does not"
            )
        reason = _fault([left, right])
        if reason:
            skipped.add(reason, number)
            continue
        pairs.append(Pair(normalized(left or "", form), normalized(right or "", form)))
        numbers.append(number)
    return _usable(Corpus(pairs, numbers, skipped), f"{source} and {target}")


def _lines(path: Path) -> Iterator[str | None]:
    """The lines of a file; None for one that is not UTF-8."""
    for number, raw in enumerate(_raw_lines(path)):
        try:
            yield raw.decode("utf-8-sig" if number == 0 else "utf-8").rstrip("\r\n")
        except UnicodeDecodeError:
            yield None


def _raw_lines(path: Path) -> Iterator[bytes]:
    """The lines of a file, of which none is longer than a line may be: a few bytes can be
    compressed from any number."""
    number = 0
    try:
        with _opened(path) as stream:
            while raw := stream.readline(MAX_LINE + 1):
                number += 1
                if len(raw) > MAX_LINE:
                    raise ValueError(f"{path}: line {number:,} is longer than {MAX_LINE:,} bytes")
                yield raw
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is not a complete gzip file: {error}") from error


def _opened(path: Path) -> io.BufferedReader:
    if path.suffix != ".gz":
        return path.open("rb")
    return io.BufferedReader(unpacked(path, gzip.open(path)), 1 << 17)


def _fault(columns: Sequence[str | None]) -> str | None:
    """Why these two sides of a pair cannot be used; None where they can."""
    if None in columns:
        return "not UTF-8"
    if len(columns) < 2:
        return "without a tab"
    if any(not column or column.isspace() for column in columns if column is not None):
        return "with an empty side"
    if any(len(column) > MAX_CHARACTERS for column in columns if column is not None):
        return f"of more than {MAX_CHARACTERS:,} characters"
    return None


def _usable(corpus: Corpus, name: str) -> Corpus:
    if not corpus.pairs:
        reason = f": {corpus.skipped}" if len(corpus.skipped) else ""
        raise ValueError(f"{name} must hold at least one pair of sentences; got none{reason}")
    return corpus


def _some(lines: list[int]) -> str:
    shown = ", ".join(map(str, lines[:_NAMED_LINES]))
    return shown + ", …" if len(lines) > _NAMED_LINES else shown
