"""Files of word vectors: GloVe's and word2vec's text, word2vec's binary; plain or gzipped.

Text has a word and its numbers on each line; word2vec's begins with a line "count dimension". In
binary that line is followed by each word, a space, and its numbers as 32-bit floats.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import warnings
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from qkv.unpacked import unpacked

#: Beyond these, a file is no file of word vectors.
_LONGEST_WORD, _MOST_DIMENSIONS = 4096, 65536

#: A line of text is at most so long, and no more lines are held at once than these.
_LONGEST_LINE = _LONGEST_WORD + 32 * _MOST_DIMENSIONS
_LINES_AT_ONCE, _BYTES_AT_ONCE = 4096, 2**25

#: Bytes that no text has.
_CONTROL = frozenset(range(9)) | frozenset(range(14, 32))


class Block(NamedTuple):
    """Some words of a file, and their vectors, (words, d)."""

    words: list[str]
    vectors: npt.NDArray[np.float32]


def blocks(path: Path, binary: bool | None = None) -> Iterator[Block]:
    """The words of a file, block by block; of repeated words the first counts.

    `binary` says whether it is word2vec's binary format; None: detect it from the first bytes.
    """
    try:
        with _opened(path) as stream:
            count = 0
            for block in _distinct(_blocks(stream, binary)):
                count += len(block.words)
                yield block
            if count == 0:
                raise ValueError("must hold at least one word; it holds none")
    except (ValueError, EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path}: {error}") from error


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[io.BufferedReader]:
    with path.open("rb") as plain:
        zipped = plain.peek(2)[:2] == b"\x1f\x8b"
        stream: Any = unpacked(path, gzip.GzipFile(fileobj=plain)) if zipped else plain
        yield io.BufferedReader(stream, 1 << 20)


def _blocks(stream: io.BufferedReader, binary: bool | None) -> Iterator[Block]:
    first = stream.readline(_LONGEST_LINE)
    if not first.strip():
        raise ValueError("line 1 must hold a word and its vector, or their numbers; it is empty")
    header = _header(first)
    if header is None:
        if binary:
            raise ValueError("a binary file must begin with a line 'count dimension'")
        return _text(stream, first, 1, None, None)
    count, dim = header
    if binary or (binary is None and _looks_binary(stream, dim)):
        return _binary(stream, count, dim)
    return _text(stream, b"", 2, dim, count)


def _header(line: bytes) -> tuple[int, int] | None:
    parts = line.split()
    if len(parts) != 2 or not all(part.isdigit() for part in parts):
        return None
    count, dim = map(int, parts)
    if not 1 <= dim <= _MOST_DIMENSIONS:
        raise ValueError(
            f"line 1 must give a dimension between 1 and {_MOST_DIMENSIONS:,}; got {dim:,}"
        )
    return count, dim


def _looks_binary(stream: io.BufferedReader, dim: int) -> bool:
    """Whether what follows the header is no line of text with `dim` numbers."""
    ahead = stream.peek(1)
    line, newline, _ = ahead.partition(b"\n")
    if newline and len(line.split()) > dim and _numbers(line.split()[-dim:]) is not None:
        return False
    return any(byte in _CONTROL for byte in ahead[: 4 * dim + _LONGEST_WORD])


def _text(
    stream: io.BufferedReader, first: bytes, number: int, dim: int | None, count: int | None
) -> Iterator[Block]:
    """Blocks of text lines, of which `first`, if it was read before, has this number."""
    start = number
    while some := _some_lines(stream, first, number):
        first = b""
        while some and not some[-1].strip():
            some.pop()  # at the end of the file
        dim = dim or _guessed(some)
        yield _parsed(some, number, dim)
        number += len(some)
    if count is not None and number - start != count:
        raise ValueError(f"line 1 promises {count:,} words; {number - start:,} came")


def _some_lines(stream: io.BufferedReader, first: bytes, number: int) -> list[bytes]:
    """The next lines, from `first` on; a few bytes of gzip can hold one of any length."""
    lines, size = ([first], len(first)) if first else ([], 0)
    if first and not first.endswith(b"\n") and len(first) == _LONGEST_LINE:
        raise ValueError(f"line {number:,} is longer than {_LONGEST_LINE:,} bytes")
    while len(lines) < _LINES_AT_ONCE and size < _BYTES_AT_ONCE:
        line = stream.readline(_LONGEST_LINE + 1)
        if len(line) > _LONGEST_LINE:
            line_number = number + len(lines)
            raise ValueError(f"line {line_number:,} is longer than {_LONGEST_LINE:,} bytes")
        if not line:
            break
        lines.append(line)
        size += len(line)
    return lines


def _guessed(lines: list[bytes]) -> int:
    """The dimension that most lines have; a word may itself hold spaces."""
    dim = Counter(len(line.split()) - 1 for line in lines[:100]).most_common(1)[0][0]
    if not 1 <= dim <= _MOST_DIMENSIONS:
        raise ValueError("line 1 must hold a word and its vector; it holds one word alone")
    return dim


def _parsed(lines: list[bytes], first: int, dim: int) -> Block:
    words, flat = _parsed_at_once(lines, dim)
    if flat is None:  # a mistake, or a word with spaces: line by line
        split = [line.rsplit(None, dim) for line in lines]
        rows = [_row(parts, first + i, dim) for i, parts in enumerate(split)]
        words = [parts[0] for parts in split]
        flat = np.concatenate(rows) if rows else np.empty(0, np.float32)
    decoded = [_decoded(word, f"line {first + i}") for i, word in enumerate(words)]
    return Block(decoded, flat.reshape(-1, dim))


def _parsed_at_once(
    lines: list[bytes], dim: int
) -> tuple[list[bytes], npt.NDArray[np.float32] | None]:
    """Words and all their numbers; None for these where a line needs the careful parser."""
    parts = [line.rstrip().partition(b" ") for line in lines]
    words = [word for word, _, _ in parts]
    if any(rest.count(b" ") != dim - 1 for _, _, rest in parts):
        return words, None
    text = b" ".join(rest for _, _, rest in parts)
    with warnings.catch_warnings(), contextlib.suppress(ValueError, DeprecationWarning):
        warnings.simplefilter("error", DeprecationWarning)  # NumPy before 2.3 only warns
        flat = np.fromstring(text, dtype=np.float32, sep=" ")
        return words, flat if flat.size == dim * len(lines) else None
    return words, None


def _row(parts: list[bytes], line: int, dim: int) -> npt.NDArray[np.float32]:
    if len(parts) < dim + 1:
        came = len(parts) - 1 if parts else 0
        raise ValueError(f"line {line} must hold a word and {dim} numbers; it has {max(0, came)}")
    extra = parts[0].rpartition(b" ")
    if extra[1] and _numbers([extra[2]]) is not None:
        raise ValueError(f"line {line} must hold a word and {dim} numbers; it has more")
    numbers = _numbers(parts[1:])
    if numbers is None:
        wrong = next(part for part in parts[1:] if _numbers([part]) is None)
        raise ValueError(f"line {line} must hold numbers after its word; got {wrong[:40]!r}")
    return numbers


def _numbers(parts: list[bytes]) -> npt.NDArray[np.float32] | None:
    try:
        return np.array([float(part) for part in parts], np.float32)
    except ValueError:
        return None


def _binary(stream: io.BufferedReader, count: int, dim: int) -> Iterator[Block]:
    words: list[str] = []
    rows: list[bytes] = []
    for entry in range(1, count + 1):
        word = _word(stream, entry, count)
        row = stream.read(4 * dim)
        if len(row) < 4 * dim:
            raise ValueError(f"word {entry:,} of {count:,} is cut off")
        words.append(word)
        rows.append(row)
        if len(words) == _LINES_AT_ONCE or entry == count:
            vectors = np.frombuffer(b"".join(rows), "<f4").reshape(-1, dim)
            yield Block(words, vectors.astype(np.float32))
            words, rows = [], []
    if stream.read(2).strip():
        raise ValueError(f"line 1 promises {count:,} words; more came")


def _word(stream: io.BufferedReader, entry: int, count: int) -> str:
    word = bytearray()
    while (byte := stream.read(1)) != b" ":
        if not byte:
            raise ValueError(f"word {entry:,} of {count:,} is missing")
        if byte != b"\n" or word:  # some writers end each vector with a newline
            word += byte
        if len(word) > _LONGEST_WORD:
            raise ValueError(f"word {entry:,} of {count:,} is longer than {_LONGEST_WORD:,} bytes")
    return _decoded(bytes(word), f"word {entry:,}")


def _decoded(word: bytes, where: str) -> str:
    try:
        return word.decode("utf-8")
    except UnicodeDecodeError:
        raise ValueError(f"{where} must be UTF-8; got {word[:40]!r}") from None


def _distinct(blocks: Iterator[Block]) -> Iterator[Block]:
    seen: set[str] = set()
    for words, vectors in blocks:
        new = [row for row, word in enumerate(words) if not (word in seen or seen.add(word))]  # type: ignore[func-returns-value]
        if len(new) < len(words):
            yield Block([words[row] for row in new], vectors[new])
        else:
            yield Block(words, vectors)
