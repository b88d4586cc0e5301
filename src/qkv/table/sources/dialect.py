"""The dialect of a CSV file: given, or detected by DuckDB's sniffer and from the first cells."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv

from qkv.table.sources.base import numbered
from qkv.table.sources.named import column_named

#: The options of `csv=`.
OPTIONS = ("delimiter", "quote", "encoding", "decimal", "thousands", "types")
#: Types of columns, by their everyday names.
TYPES = {
    "text": "VARCHAR",
    "integer": "BIGINT",
    "number": "DOUBLE",
    "boolean": "BOOLEAN",
    "date": "DATE",
    "time": "TIME",
    "timestamp": "TIMESTAMP",
    "zoned timestamp": "TIMESTAMP WITH TIME ZONE",
}
#: Rows from which types are detected; bytes from which the encoding is.
SAMPLE_ROWS, _SAMPLE_BYTES = 20_480, 2**26

_BLOCK, _ENCODED_BLOCK = 2**16, 2**20
_DELIMITERS = ",;\t|"
_MARKS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
_PLAIN = r"[+-]?\d+"
_POINT = re.compile(rf"{_PLAIN}(\.\d*)?([eE][+-]?\d+)?|[+-]?\d{{1,3}}(,\d{{3}})+(\.\d*)?")
_COMMA = re.compile(rf"{_PLAIN}(,\d*)?([eE][+-]?\d+)?|[+-]?\d{{1,3}}(\.\d{{3}})+(,\d*)?")
_ARROW_TYPES = {
    "int64": "BIGINT",
    "double": "DOUBLE",
    "bool": "BOOLEAN",
    "date32[day]": "DATE",
    "timestamp[s]": "TIMESTAMP",
    "timestamp[ns]": "TIMESTAMP",
}


@dataclass(frozen=True)
class Dialect:
    """The dialect of one file, and the types of its columns."""

    delimiter: str
    quote: str
    decimal: str
    thousands: str
    encoding: str
    dates: str
    timestamps: str
    columns: dict[str, str] = field(hash=False)  # the type of each, as DuckDB calls it
    repeated: dict[str, list[str]] = field(hash=False)
    goes_on: bool = False  # beyond the rows that told the types

    def __str__(self) -> str:
        parts = [f"delimiter {self.delimiter!r}", f"encoding {self.encoding}"]
        parts.append(f"decimal {self.decimal!r}")
        if self.thousands:
            parts.append(f"thousands {self.thousands!r}")
        if self.dates:
            parts.append(f"dates {self.dates}")
        if self.timestamps:
            parts.append(f"timestamps {self.timestamps}")
        return ", ".join(parts)


def check_options(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options in `csv=`, checked."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise TypeError(f"csv must be a mapping of {', '.join(OPTIONS)}; got {given!r}")
    for name, value in given.items():
        if name not in OPTIONS:
            raise ValueError(f"csv must have the keys {', '.join(OPTIONS)}; got {name!r}")
        if name in ("delimiter", "quote", "decimal", "thousands") and (
            not isinstance(value, str) or len(value) > (4 if name == "delimiter" else 1)
        ):
            raise ValueError(f"csv[{name!r}] must be a character; got {value!r}")
    if "encoding" in given:
        try:
            codecs.lookup(given["encoding"])
        except (LookupError, TypeError) as error:
            raise ValueError(f"csv['encoding'] is unknown: {given['encoding']!r}") from error
    types = given.get("types", {})
    for column, type in types.items() if isinstance(types, Mapping) else [("", types)]:
        if type not in TYPES:
            raise ValueError(
                f"csv['types'] must map columns to {', '.join(TYPES)}; got {type!r}"
                + (f" for {column!r}" if column else "")
            )
    return dict(given)


def encoding_of(path: Path) -> str:
    """The encoding of a file: by its mark, UTF-8 if it reads so, else Windows' or Latin-1."""
    able = {name: codecs.getincrementaldecoder(name)() for name in ("utf-8", "cp1252")}
    read, plain = 0, True
    with pa.input_stream(path, compression="detect") as stream:
        while read < _SAMPLE_BYTES and (block := stream.read(_ENCODED_BLOCK)):
            for mark, name in _MARKS.items() if read == 0 else ():
                if block.startswith(mark):
                    return name
            read += len(block)
            plain = plain and block.isascii()  # which is told much faster than it is decoded
            for name in () if plain else list(able):
                try:  # a character may be cut at the end
                    able[name].decode(block)
                except UnicodeDecodeError:
                    del able[name]
    return next(iter(able), "latin-1")


def is_compressed(path: str) -> bool:
    """Whether Arrow and DuckDB unpack a file of this name."""
    return path.lower().endswith((".gz", ".zst"))


def head_of(path: str, quote: str) -> tuple[bytes, bool]:
    """The first rows of a file, as many as tell its dialect; and whether there are more.

    Of what a compressed file holds DuckDB's sniffer keeps all that it reads, which a few bytes can
    make as long as one likes.
    """
    blocks: list[bytes] = []
    lines = size = 0
    with pa.input_stream(path, compression="detect") as stream:
        while lines < 2 * SAMPLE_ROWS and size < _SAMPLE_BYTES:
            block = stream.read(_ENCODED_BLOCK)
            if not block:
                return b"".join(blocks), False
            blocks.append(block)
            lines, size = lines + block.count(b"\n"), size + len(block)
    head = b"".join(blocks)
    end, mark = head.rfind(b"\n") + 1, quote.encode()
    if mark and head.count(mark, 0, end) % 2:  # it ends within a cell
        end = head.rfind(b"\n", 0, head.rfind(mark, 0, end)) + 1 or end
    return head[:end] or head, True


def sniff(
    connection: Any,
    path: str,
    encoding: str,
    options: Mapping[str, Any],
    needed: list[str],
    head: str | None = None,
) -> Dialect:
    """The dialect of this file, which is in UTF-8 by now; `head` is one of its first rows alone.

    Columns that are not needed and whose first cells are all empty are read as text; the types of
    the others are detected from the first cells that are not empty.
    """
    if "delimiter" not in options:
        options = {**options, "delimiter": _delimiter(head or path, options.get("quote", '"'))}
    dialect = _sniffed(connection, head or path, options)
    texts, goes_on = _texts(connection, head or path, dialect)
    if "decimal" not in options and "thousands" not in options:
        decimal, thousands = _number_format(texts, dialect)
        if (decimal, thousands) != (".", ""):
            marks = {"delimiter": dialect.delimiter, "decimal": decimal, "thousands": thousands}
            dialect = _sniffed(connection, head or path, {**options, **marks})
    types = dict(dialect.columns)
    for name in types:
        if name in needed and not texts[name]:
            types[name] = _type_further_on(connection, path, dialect, name)
    for name, type in dict(options.get("types", {})).items():
        if name in types:
            types[name] = TYPES[type]
    return replace(dialect, columns=types, encoding=encoding, goes_on=goes_on)


def read_options(dialect: Dialect, all_text: bool = False) -> dict[str, Any]:
    """The dialect as DuckDB's reader takes it."""
    options: dict[str, Any] = {
        "header": True,
        "auto_detect": False,
        "sep": dialect.delimiter,
        "quotechar": dialect.quote,
        "escapechar": dialect.quote,
        "columns": dialect.columns,
    }
    if all_text:
        return {**options, "columns": dict.fromkeys(dialect.columns, "VARCHAR")}
    settings = {
        "decimal": dialect.decimal,
        "thousands": dialect.thousands,
        "date_format": dialect.dates,
        "timestamp_format": dialect.timestamps,
    }
    return options | {name: value for name, value in settings.items() if value}


def _sniffed(connection: Any, path: str, options: Mapping[str, Any]) -> Dialect:
    quote = options.get("quote", '"')
    settings = {
        "quote": quote,
        "escape": quote,
        "delim": options.get("delimiter"),
        "decimal_separator": options.get("decimal"),
        "thousands": options.get("thousands"),
        "sample_size": SAMPLE_ROWS,
        "skip": 0,
    }
    chosen = {name: value for name, value in settings.items() if value not in (None, "")}
    (detected,) = connection.execute(
        f"SELECT Delimiter, Columns, DateFormat, TimestampFormat "
        f"FROM sniff_csv(?, header=true, {', '.join(f'{name}=?' for name in chosen)})",
        [one_file(path), *chosen.values()],
    ).fetchall()
    names, repeated = numbered(_header(path, detected[0], quote, len(detected[1])))
    if len(names) != len(detected[1]):
        names, repeated = [column["name"] for column in detected[1]], {}
    odd = next((name for name in names if "\0" in name), None)
    if odd is not None:  # Arrow would take such a name to end there
        raise ValueError(f"{path} names column {odd!r:.80}, which holds a NUL byte; is it text?")
    return Dialect(
        delimiter=detected[0],
        quote=quote,
        decimal=options.get("decimal") or ".",
        thousands=options.get("thousands") or "",
        encoding="utf-8",
        dates=detected[2] or "",
        timestamps=detected[3] or "",
        columns={
            name: _supported_type(column["type"])
            for name, column in zip(names, detected[1], strict=True)
        },
        repeated=repeated,
    )


def _supported_type(type: str) -> str:
    """A type that is read here; integers of any length as those of 38 digits."""
    if type == "BIGNUM":
        return "HUGEINT"
    return type if type in (*TYPES.values(), "HUGEINT") else "VARCHAR"


def _delimiter(path: str, quote: str) -> str | None:
    """What parts every one of the first lines into as many cells as the header; None if unsure.

    DuckDB's sniffer leaves out a header that does not fit, as where commas are in all numbers.
    """
    lines = _first_lines(path)
    if not lines:
        raise ValueError("it is empty")
    fitting = []
    for sign in _DELIMITERS:
        counts = {len(row) for row in csv.reader(lines, delimiter=sign, quotechar=quote or None)}
        if len(counts - {0}) == 1 and max(counts) > 1:
            fitting.append(sign)
    in_header = [sign for sign in _DELIMITERS if sign in lines[0]]
    if not fitting and len(in_header) == 1:
        _refuse_ragged(lines, in_header[0], quote)
    return fitting[0] if len(fitting) == 1 else None


def _refuse_ragged(lines: list[str], sign: str, quote: str) -> None:
    reader = csv.reader(lines, delimiter=sign, quotechar=quote or None)
    header = len(next(reader))
    for row in reader:
        if row and len(row) != header:
            raise ValueError(
                f"line {reader.line_num} has {len(row)} cells and the header {header}, parted by "
                f"{sign!r}; csv={{'delimiter': …}} names another sign"
            )


def _header(path: str, delimiter: str, quote: str, count: int) -> list[str]:
    """The names in the first line, as they are written."""
    names = next(csv.reader(_first_lines(path), delimiter=delimiter, quotechar=quote or None), [])
    return [name or f"column{place}" for place, name in enumerate(names)][:count]


def _first_lines(path: str) -> list[str]:
    """Some whole lines from the start of a file."""
    with pa.input_stream(path, compression="detect") as stream:
        block = stream.read(_BLOCK)
    lines: list[str] = block.decode("utf-8-sig", errors="replace").splitlines(keepends=True)
    return lines[:-1] if len(block) == _BLOCK and len(lines) > 1 else lines


def one_file(path: str) -> str:
    """A path that DuckDB takes for one file, whatever characters it has."""
    return "".join(f"[{sign}]" if sign in "*?[" else sign for sign in path)


def _texts(connection: Any, path: str, dialect: Dialect) -> tuple[dict[str, list[str]], bool]:
    """The first cells of each column that are not empty, as written; and whether more follow."""
    relation = connection.read_csv(one_file(path), **read_options(dialect, all_text=True))
    rows, goes_on = _sample(relation)
    cells = {name: rows.column(name).drop_null().unique().to_pylist() for name in dialect.columns}
    return cells, goes_on


def _sample(relation: Any) -> tuple[pa.Table, bool]:
    """The first rows, so many or so many bytes; and whether there may be more."""
    batches: list[pa.RecordBatch] = []
    size = 0
    with relation.limit(SAMPLE_ROWS).to_arrow_reader(2048) as reader:
        for batch in reader:
            batches.append(batch)
            size += batch.nbytes
            if size > _SAMPLE_BYTES:
                return pa.Table.from_batches(batches), True
        rows = pa.Table.from_batches(batches, reader.schema)
    return rows, len(rows) == SAMPLE_ROWS


def _number_format(texts: dict[str, list[str]], dialect: Dialect) -> tuple[str, str]:
    """The signs of decimals and thousands in cells that are numbers once these are known."""
    with_comma = {
        name
        for name, type in dialect.columns.items()
        if type == "VARCHAR" and any("," in text for text in texts[name])
    }
    points = {name for name in with_comma if all(map(_POINT.fullmatch, texts[name]))}
    commas = {name for name in with_comma if all(map(_COMMA.fullmatch, texts[name]))}
    # Where "1,234" may be either, it is a thousand and more if columns are parted by commas.
    if points and (not commas - points) and (points - commas or dialect.delimiter == ","):
        return ".", ","
    fractions = [name for name, type in dialect.columns.items() if type == "DOUBLE"]
    if commas and all(_COMMA.fullmatch(text) for name in fractions for text in texts[name]):
        dotted = any("." in text for name in {*commas, *fractions} for text in texts[name])
        return ",", "." if dotted else ""
    return ".", ""


def _type_further_on(connection: Any, path: str, dialect: Dialect, name: str) -> str:
    """What the first cells of this column hold that are not empty; NULL if all are."""
    relation = connection.read_csv(one_file(path), **read_options(dialect, all_text=True))
    column = column_named(name)
    cells, _ = _sample(relation.filter(column.isnotnull()).select(column))
    if len(cells) == 0:
        return "NULL"
    texts = {name: cells.column(0).unique().to_pylist()}
    if _number_format(texts, replace(dialect, columns={name: "VARCHAR"}))[0] == dialect.decimal:
        plain = [text.replace(dialect.thousands, "") if dialect.thousands else text
                 for text in texts[name]]  # fmt: skip
        texts[name] = [text.replace(dialect.decimal, ".") for text in plain]
    buffer = io.BytesIO()
    pyarrow.csv.write_csv(pa.table(texts), buffer)
    buffer.seek(0)
    return _ARROW_TYPES.get(str(pyarrow.csv.read_csv(buffer).schema.types[0]), "VARCHAR")
