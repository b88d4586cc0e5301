"""`qkv query`."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from qkv.cli.app import app
from qkv.disk import replacing

if TYPE_CHECKING:
    from qkv.table import Answer, Database
    from qkv.table.reading import Progress

#: What `qkv query --demo` asks where nothing else is said: the sample, keys, value, query, how.
_DEMO: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "students.csv": ("name", "major", "John Doe", {}),
    "salaries.csv": ("gpa", "salary", "3.5", {"similarity": "gaussian", "bandwidth": 0.1}),
}


@app.command()
def query(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE QUERY...",
            help="A CSV or Parquet file or folder, a .duckdb file or a postgresql:// address; "
            "then what to ask it. A query for several keys has commas: '3.5,software'.",
        ),
    ] = None,
    key: Annotated[
        list[str] | None, typer.Option(help="The key column; repeat it for several.")
    ] = None,
    value: Annotated[str | None, typer.Option(help="The value column.")] = None,
    similarity: Annotated[
        list[str] | None,
        typer.Option(help="equal, gaussian, boxcar, fuzzy, …: one, or one for each key."),
    ] = None,
    bandwidth: Annotated[
        list[str] | None,
        typer.Option(help="How far to look: one, or one for each key ('-' for none)."),
    ] = None,
    where: Annotated[
        str | None, typer.Option(help="Which rows: \"year >= 2020 and field = 'civil'\".")
    ] = None,
    table: Annotated[str | None, typer.Option(help="The table of a database.")] = None,
    sql: Annotated[str | None, typer.Option(help="Or the query that gives its rows.")] = None,
    queries: Annotated[
        Path | None, typer.Option(help="A CSV file of queries, with columns named as the keys.")
    ] = None,
    rows: Annotated[int, typer.Option(min=0, help="How many of the heaviest rows to show.")] = 5,
    plot: Annotated[Path | None, typer.Option(help="Draw the first answer to this file.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write all answers to this .parquet or .csv file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print answers as JSON.")] = False,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say how the source would be asked, and stop.")
    ] = False,
    demo: Annotated[
        bool, typer.Option("--demo", help="Ask the sample tables, which are synthetic.")
    ] = False,
) -> None:
    """Ask any table a soft question: which value belongs to a key, or to keys near it."""
    from qkv.table import Database

    words = words or []
    options: dict[str, Any] = {"where": where, "top": rows}
    if demo and not words and queries is None and key is None:
        for name, (own_key, own_value, asked, how) in _DEMO.items():
            database = Database(_sample(name), key=own_key, value=own_value)
            _answer(
                database, _parsed(database, [asked]), {**options, **how}, json, plot, out, explain
            )
        return
    if key is None or value is None:
        raise ValueError("query needs --key and --value, the columns to ask and to answer from")
    if demo:
        source: str | Path = _sample_with([*key, value])
    elif words:
        source, *words = words
    else:
        raise ValueError("query needs a source: a file, a folder or an address; or --demo")
    database = Database(source, key=key, value=value, table=table, sql=sql)
    options["similarity"] = _for_keys(similarity or ["equal"], key, "similarity")
    widths = _for_keys(bandwidth or ["-"], key, "bandwidth")
    options["bandwidth"] = {name: _width(w) for name, w in widths.items() if w != "-"}
    asked_for = _parsed(database, words) + (_from_file(database, queries) if queries else [])
    if not asked_for:
        raise ValueError("query needs something to ask: words after the source, or --queries")
    _answer(database, asked_for, options, json, plot, out, explain)


def _answer(
    database: Database,
    asked: list[dict[str, Any]],
    options: dict[str, Any],
    json: bool,
    plot: Path | None,
    out: Path | None,
    explain: bool,
) -> None:
    console = Console()
    if explain:
        plan = database.explain(asked, **options)
        console.print(str(plan), markup=False, highlight=False, soft_wrap=True)
        return
    with _progress() as progress:
        answers: list[Answer] = database.query(asked, **options, progress=progress)
    if plot is not None:
        answers[0].plot(plot)
    if out is not None:
        _write(answers, out)
    if json:
        import json as json_module

        print(json_module.dumps([a.to_dict() for a in answers], indent=1))  # noqa: T201
    elif out is None or len(answers) <= 10:
        for answer in answers:
            console.print(answer)
    else:
        console.print(f"{len(answers):,} answers in {out}", markup=False)


@contextlib.contextmanager
def _progress() -> Iterator[Progress]:
    """A bar on the error stream, for people only; gone when done."""
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("reading", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _parsed(database: Database, words: list[str]) -> list[dict[str, Any]]:
    """Words as keys of the columns' types."""
    from qkv.table.columns import parsed

    found = []
    for word in words:
        parts = (
            [word] if len(database.key) == 1 else next(csv.reader([word], skipinitialspace=True))
        )
        if len(parts) != len(database.key):
            raise ValueError(
                f"a query must have a key for each of {', '.join(database.key)}; got {word!r}"
            )
        found.append(
            {
                name: parsed(part, database.schema.field(name).type, name)
                for name, part in zip(database.key, parts, strict=True)
            }
        )
    return found


def _from_file(database: Database, path: Path) -> list[dict[str, Any]]:
    """Queries from a CSV file, by the names of its columns."""
    from qkv.table.columns import parsed

    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.DictReader(file)
        for name in database.key:
            if name not in (reader.fieldnames or []):
                raise ValueError(f"{path.name!r} must have a column {name!r}, as the key is called")
        return [
            {
                name: parsed(row[name] or "", database.schema.field(name).type, name)
                for name in database.key
            }
            for row in reader
        ]


def _write(answers: list[Answer], path: Path) -> None:
    """All answers as one table; an interrupted write leaves no half."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    if path.suffix.lower() not in (".parquet", ".csv"):
        raise ValueError(f"--out must end in .parquet or .csv; got {path.name!r}")
    whole = pa.concat_tables([a.to_arrow() for a in answers], promote_options="permissive")
    with replacing(path) as half:
        if path.suffix.lower() == ".csv":
            flat = [name for name in whole.column_names if name != "distribution"]
            arrow_csv.write_csv(whole.select(flat), half)
        else:
            parquet.write_table(whole, half)


def _for_keys(given: list[str], key: list[str], argument: str) -> dict[str, str]:
    if len(given) not in (1, len(key)):
        raise ValueError(f"--{argument} must be given once, or once for each of {', '.join(key)}")
    return dict(zip(key, given * (len(key) if len(given) == 1 else 1), strict=True))


def _width(word: str) -> float:
    try:
        return float(word)
    except ValueError as error:
        raise ValueError(f"--bandwidth must be a number or '-'; got {word!r}") from error


def _sample(name: str) -> Path:
    from qkv.table.samples import FOLDER

    return FOLDER / name


def _sample_with(columns: list[str]) -> Path:
    """The sample table that has these columns."""
    for name in _DEMO:
        with _sample(name).open(encoding="utf-8") as file:
            if set(columns) <= set(next(csv.reader(file))):
                return _sample(name)
    raise ValueError(
        f"no sample table has the columns {', '.join(columns)}; there are {', '.join(_DEMO)}"
    )
