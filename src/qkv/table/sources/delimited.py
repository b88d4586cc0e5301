"""CSV, by way of DuckDB: one file or a folder of them, compressed or not, in any encoding."""

from __future__ import annotations

import codecs
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
from pyarrow import fs

from qkv.optional_dependencies import require
from qkv.table.sources.base import Part, Request, Scan, Source
from qkv.table.sources.dialect import (
    SAMPLE_ROWS,
    TYPES,
    Dialect,
    check_options,
    encoding_of,
    head_of,
    is_compressed,
    one_file,
    read_options,
    sniff,
)
from qkv.table.sources.duck import Relation, connected, first_line
from qkv.table.sources.file_states import FileStates
from qkv.table.sources.named import column_named
from qkv.unpacked import unpacked

#: Types that hold all that others hold, the widest last.
_WIDER = [("BIGINT", "HUGEINT", "DOUBLE"), ("DATE", "TIMESTAMP")]


def open_delimited(
    paths: list[Path], given: Mapping[str, Any] | None, needed: list[str], root: Path
) -> Csv:
    """These files as one source; `needed` are the columns whose types must be right.

    Folders between `root` and a file that are called name=value are columns too.
    """
    duckdb = require("duckdb", "table")
    options = check_options(given)
    connection = _connection()
    copies = _Copies()
    dialects: list[Dialect] = []
    for path in paths:
        try:
            encoding = options.get("encoding") or encoding_of(path)
            readable = copies.in_utf8(path, encoding)
            with _head(readable, options.get("quote", '"')) as (head, is_cut):
                dialect = sniff(connection, readable, encoding, options, needed, head)
            dialects.append(replace(dialect, goes_on=dialect.goes_on or is_cut))
        except (duckdb.Error, ValueError, OSError) as error:
            raise ValueError(f"{path.name!r} cannot be read as CSV: {first_line(error)}") from error
    names = [path.name if path == root else str(path.relative_to(root)) for path in paths]
    schema = _unified(list(zip(names, dialects, strict=True)))
    for column in options.get("types", {}):
        if column not in schema:
            raise ValueError(f"csv['types'] names column {column!r}, which is not there")
    folders = [_folders(path, root) for path in paths]
    for folder in folders:
        for name in folder:
            all_integers = all(each.get(name, "0").lstrip("-").isdecimal() for each in folders)
            schema.setdefault(name, "BIGINT" if all_integers else "VARCHAR")
    files = [_File(*each) for each in zip(map(str, paths), dialects, folders, strict=True)]
    return Csv(files, schema, copies)


@contextmanager
def _head(path: str, quote: str) -> Iterator[tuple[str | None, bool]]:
    """A file of the first rows of a compressed one, and whether that has more; else None."""
    if not is_compressed(path):
        yield None, False
        return
    with tempfile.TemporaryDirectory(prefix="qkv-csv-") as folder:
        copy = Path(folder) / Path(path).stem
        rows, is_cut = head_of(path, quote)
        copy.write_bytes(rows)
        yield str(copy), is_cut


class _File(NamedTuple):
    """One of the files, its dialect, and the columns that its folders give."""

    path: str
    dialect: Dialect
    folders: dict[str, str]


def _connection() -> Any:
    return connected(config={"autoinstall_known_extensions": "false"})


class Csv(Relation):
    """CSV files, read by DuckDB from start to end."""

    def __init__(self, files: list[_File], columns: dict[str, str], copies: _Copies) -> None:
        connection = _connection()
        readable = [copies.in_utf8(Path(file.path), file.dialect.encoding) for file in files]

        def relation() -> Any:
            return _together(connection.cursor(), files, readable, columns)

        super().__init__(relation(), relation)
        self._copies = copies  # for as long as they are read
        self._files, self._columns = files, columns
        dialects = [file.dialect for file in files]
        self.description = f"CSV, {len(dialects):,} file" + ("s" if len(dialects) != 1 else "")
        self.repeated = {name: new for file in dialects for name, new in file.repeated.items()}
        for place, field in enumerate(self.schema):
            if columns[field.name] == "NULL":
                self.schema = self.schema.set(place, pa.field(field.name, pa.null()))
        descriptions = list(dict.fromkeys(map(str, dialects)))
        types = ", ".join(f"{name} {_type_name(type)}" for name, type in columns.items())
        self.notes = [f"CSV is read with {description}" for description in descriptions[:3]]
        self.notes.append(f"columns hold {types}; empty cells are missing")

    def scan(self, request: Request) -> Scan:
        scan = super().scan(request)
        scan.notes = [] if request.where is None else ["where is applied by DuckDB while it reads"]
        return scan

    def parts(self, request: Request) -> list[Part]:
        states = FileStates(fs.LocalFileSystem(), [file.path for file in self._files])
        return [
            Part(
                CsvPart(file, self._columns, self.schema, states.of([file.path])),
                repr(Path(file.path).name),
            )
            for file in self._files
        ]

    def _refusal(self, error: Exception) -> str:
        return f"{self.description}: {_reason(error)}"


class CsvPart(Source):
    """One of the files, to be read by another process with the types of all files."""

    description = "a CSV file"

    def __init__(
        self, file: _File, columns: dict[str, str], schema: pa.Schema, states: FileStates
    ) -> None:
        self._file, self._columns, self._states = file, columns, states
        self.schema = schema

    def scan(self, request: Request) -> Scan:
        self._states.check()
        return Csv([self._file], self._columns, _Copies()).scan(request)


def _reason(error: Exception) -> str:
    """Where in a file something could not be read, and which option may help."""
    lines = [line.strip() for line in str(error).strip().split("\n")]
    reasons = [line for line in lines if not line.startswith(("Original Line", "Possible", "*"))][
        :2
    ]
    if any("csv={" in line for line in reasons):
        return reasons[0]
    help = "csv={'types': …}" if any("onver" in line for line in reasons) else "csv={…}"
    return f"{' '.join(reasons)}; {help} says how to read it"


def _type_name(type: str) -> str:
    return {duckdb_type: name for name, duckdb_type in TYPES.items()}.get(type, type.lower())


def _unified(dialects: list[tuple[str, Dialect]]) -> dict[str, str]:
    """The columns of all files, each with a type that holds what it holds in every file."""
    columns: dict[str, str] = {}
    first: dict[str, str] = {}  # the file that told
    for file, dialect in dialects:
        for name, type in dialect.columns.items():
            type_so_far = columns.get(name, "NULL")
            wider = [types for types in _WIDER if {type_so_far, type} <= set(types)]
            if type_so_far in ("NULL", type):
                columns[name], first[name] = type, file
            elif wider:
                columns[name] = max(type_so_far, type, key=wider[0].index)
            elif type != "NULL":
                raise ValueError(
                    f"column {name!r} holds {_type_name(type_so_far)} in {first[name]!r} and "
                    f"{_type_name(type)} in {file!r}; csv={{'types': {{{name!r}: 'text'}}}} reads "
                    "both"
                )
    return columns


def _folders(path: Path, root: Path) -> dict[str, str]:
    """Hive partition columns: those that the folders on the path to a file give."""
    if path == root:
        return {}
    parts = [part.partition("=") for part in path.relative_to(root).parts[:-1]]
    return {name: value for name, sign, value in parts if sign}


def _together(
    connection: Any,
    files: list[_File],
    readable: list[str],
    columns: dict[str, str],
) -> Any:
    """All files as one relation with these columns; files that lack one hold nothing there.

    `readable` are their paths, or those of copies in UTF-8.
    """
    duckdb = require("duckdb", "table")
    parts = []
    named = zip(readable, files, strict=True)
    for (_, partition), group in groupby(
        named, key=lambda file: (read_options(file[1].dialect), file[1].folders)
    ):
        same = [(path, file.dialect) for path, file in group]
        dialect = same[0][1]
        types = {
            name: "VARCHAR" if type == "NULL" else columns[name]
            for name, type in dialect.columns.items()
        }
        # DuckDB rounds 1.5 where integers are read: columns of integers are checked first.
        watched = {
            name
            for name, type in types.items()
            if type in ("BIGINT", "HUGEINT") and any(dialect.goes_on for _, dialect in same)
        }
        types = types | dict.fromkeys(watched, "VARCHAR")
        options = read_options(dialect) | {"columns": types}
        relation = connection.read_csv([one_file(path) for path, _ in same], **options)
        chosen = [
            (
                _whole_number(name, dialect)
                if name in watched
                else column_named(name)
                if name in types
                else duckdb.ConstantExpression(partition.get(name))
            )
            .cast("VARCHAR" if type == "NULL" else type)
            .alias(name)
            for name, type in columns.items()
        ]
        parts.append(relation.select(*chosen))
    while len(parts) > 1:  # pairs of pairs, so that many files make no deep query
        pairs = [parts[at : at + 2] for at in range(0, len(parts), 2)]
        parts = [pair[0].union(pair[1]) if len(pair) == 2 else pair[0] for pair in pairs]
    return parts[0]


def _whole_number(name: str, dialect: Dialect) -> Any:
    """The text of a whole number, as SQL reads it; an error where it is none."""
    duckdb = require("duckdb", "table")
    call, value = duckdb.FunctionExpression, duckdb.ConstantExpression
    text = column_named(name)
    if dialect.thousands:
        text = call("replace", text, value(dialect.thousands), value(""))
    refusal = call(
        "concat",
        value(f"column {name!r} held integers in the first {SAMPLE_ROWS:,} rows, and then "),
        text,
        value(f", which csv={{'types': {{{name!r}: 'number'}}}} or 'text' reads"),
    )
    is_integer = call("regexp_full_match", text, value(r"\s*[+-]?\d+\s*"))
    checked = duckdb.CaseExpression(is_integer, text).when(text.isnull(), value(None))
    return checked.otherwise(call("error", refusal))


class _Copies:
    """Files in other encodings, as UTF-8 in a temporary folder."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._made: dict[Path, Path] = {}  # copies, by the file

    def in_utf8(self, path: Path, encoding: str) -> str:
        if codecs.lookup(encoding).name in ("utf-8", "utf-8-sig", "ascii"):
            return str(path)
        if self._folder is None:
            self._folder = Path(tempfile.mkdtemp(prefix="qkv-csv-"))
            weakref.finalize(self, shutil.rmtree, self._folder, ignore_errors=True)
        if path in self._made:
            return str(self._made[path])
        copy = self._made[path] = self._folder / f"{len(self._made)}.csv"
        decoder = codecs.getincrementaldecoder(encoding)()
        with pa.input_stream(path, compression="detect") as plain, copy.open("wb") as out:
            stream = unpacked(path, plain) if is_compressed(path.name) else plain
            try:
                while block := stream.read(2**22):
                    out.write(decoder.decode(block).encode())
                out.write(decoder.decode(b"", final=True).encode())
            except UnicodeDecodeError as error:
                raise ValueError(f"{path.name!r} is not {encoding}: {error}") from error
        return str(copy)
