"""`qkv query`."""

from __future__ import annotations

import contextlib
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from qkv.atomic_write import replacing
from qkv.cli.app import app
from qkv.cli.names import check_file, check_suffix
from qkv.cli.negative import NegativeNumbers

if TYPE_CHECKING:
    from qkv.table import Database
    from qkv.table.aggregation import Progress
    from qkv.table.answers import AnyAnswer

#: What `qkv query --demo` asks where nothing else is said: the sample, keys, value, query, how.
_DEMO: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "students.csv": ("name", "major", "John Doe", {}),
    "salaries.csv": ("gpa", "salary", "3.5", {"similarity": "gaussian", "bandwidth": 0.1}),
}


@app.command(cls=NegativeNumbers, short_help="Ask any table a soft question.")
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
    value: Annotated[
        list[str] | None, typer.Option(help="The value column; repeat it for several.")
    ] = None,
    similarity: Annotated[
        list[str] | None,
        typer.Option(help="equal, gaussian, boxcar, fuzzy, …: one, or one for each key."),
    ] = None,
    bandwidth: Annotated[
        list[str] | None,
        typer.Option(help="How far to look: one, or one for each key ('-' for none)."),
    ] = None,
    cutoff: Annotated[
        float | None,
        typer.Option(help="How alike texts must be for fuzzy to match them, 0 to 1 [0.6]."),
    ] = None,
    where: Annotated[
        str | None, typer.Option(help="Which rows: \"year >= 2020 and field = 'civil'\".")
    ] = None,
    by: Annotated[
        list[str] | None, typer.Option(help="An answer for each group: the column that makes them.")
    ] = None,
    weight: Annotated[
        str | None, typer.Option(help="A column of numbers by which rows are multiplied.")
    ] = None,
    decay: Annotated[
        str | None,
        typer.Option(help="Older rows weigh less: date=90d halves them every 90 days."),
    ] = None,
    as_of: Annotated[
        str | None, typer.Option(help="With --decay: the date after which rows weigh nothing.")
    ] = None,
    curve: Annotated[
        str | None, typer.Option(help="A curve instead: '2,4,50' asks 50 keys from 2 to 4.")
    ] = None,
    table: Annotated[str | None, typer.Option(help="The table of a database.")] = None,
    sql: Annotated[str | None, typer.Option(help="Or the query that gives its rows.")] = None,
    delimiter: Annotated[
        str | None, typer.Option(help="What parts the columns of a CSV file, where not detected.")
    ] = None,
    encoding: Annotated[str | None, typer.Option(help="Its encoding: utf-8, latin-1, …")] = None,
    decimal: Annotated[str | None, typer.Option(help="Its decimal sign: '.' or ','.")] = None,
    thousands: Annotated[str | None, typer.Option(help="Its sign between thousands.")] = None,
    type: Annotated[
        list[str] | None,
        typer.Option(help="What a column holds: zip=text. Also integer, number, date, …"),
    ] = None,
    queries: Annotated[
        Path | None, typer.Option(help="A CSV file of queries, with columns named as the keys.")
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(min=0, help="How many of the heaviest rows to show [5; none of groups]."),
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the first answer to this file.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write all answers to this .parquet or .csv file.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print answers as JSON.")] = False,
    scheduler: Annotated[
        str | None,
        typer.Option(help="Let a Dask cluster read: the address of its scheduler, tcp://…:8786."),
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say how the source would be asked, and stop.")
    ] = False,
    demo: Annotated[
        bool, typer.Option("--demo", help="Ask the sample tables, which are synthetic.")
    ] = False,
) -> None:
    """Ask any table a soft question: which value belongs to a key, or to keys near it."""
    words = words or []
    key, value = key or [], value or []
    _check(words, demo, key, value, plot, out)
    from qkv.table import Database

    options: dict[str, Any] = {"where": where, "top": rows}
    if scheduler is not None:
        if curve is not None:
            raise ValueError("--curve is computed by this process: leave out --scheduler")
        from qkv.cluster.jobs import connect

        options["client"] = connect(scheduler)
    if demo and not words and queries is None and not key:
        for name, (own_key, own_value, asked, how) in _DEMO.items():
            database = Database(_sample(name), key=own_key, value=own_value)
            _answer(
                database, _parsed(database, [asked]), {**options, **how}, json, plot, out, explain
            )
        return
    if demo:
        source: str | Path = _sample_with([*key, *value])
    elif words:
        source, *words = words
    else:
        raise ValueError("query needs a source: a file, a folder or an address; or --demo")
    csv = _csv(delimiter=delimiter, encoding=encoding, decimal=decimal, thousands=thousands)
    if type:
        csv = {**(csv or {}), "types": dict(map(_column_type, type))}
    values = value[0] if len(value) == 1 else value
    database = Database(source, key=key, value=values, table=table, sql=sql, csv=csv)
    options |= {"by": by or None, "weight": weight, "decay": _decay(database, decay, as_of)}
    if cutoff is not None:
        options["cutoff"] = cutoff if len(key) == 1 else _cutoffs(cutoff, key, similarity)
    options["similarity"] = _for_keys(similarity or ["equal"], key, "similarity")
    widths = _for_keys(bandwidth or ["-"], key, "bandwidth")
    options["bandwidth"] = {name: _width(w) for name, w in widths.items() if w != "-"}
    if curve is not None:
        if words or queries is not None:
            raise ValueError("--curve asks keys of its own; leave out other queries")
        _draw(database, _grid(database, curve), options, json, plot, out)
        return
    asked_for = _parsed(database, words) + (_from_file(database, queries) if queries else [])
    if not asked_for:
        raise ValueError("query needs something to ask: words after the source, or --queries")
    _answer(database, asked_for, options, json, plot, out, explain)


def _check(
    words: list[str],
    demo: bool,
    key: list[str],
    value: list[str],
    plot: Path | None,
    out: Path | None,
) -> None:
    """What can be told before torch and pyarrow are imported."""
    if not (demo and not words and not key) and not (key and value):
        raise ValueError("query needs --key and --value, the columns to ask and to answer from")
    if words and not demo:
        check_file(words[0], "the source")
    check_suffix(plot, "--plot", ".svg", ".pdf", ".png")
    check_suffix(out, "--out", ".parquet", ".csv")


def _suggest(
    console: Console, database: Database, answer: AnyAnswer, options: dict[str, Any]
) -> None:
    """Where no key is equal: the nearest ones, and the similarity that would find them."""
    if getattr(answer, "found", True) or len(database.key) != 1:
        return
    (name,), query = database.key, next(iter(answer.query.values()))
    if options.get("similarity", {name: "equal"}) not in ("equal", {name: "equal"}):
        return
    soft = "fuzzy" if isinstance(query, str) else "gaussian"
    asked = {**options, "similarity": {name: soft}, "bandwidth": {}, "top": 3}
    asked.pop("by", None)
    with contextlib.suppress(ValueError, TypeError):  # a hint that fails is no hint
        near: Any = database.query(query, **asked)
        if near.found:
            keys = ", ".join(dict.fromkeys(str(row[name]) for row in near.rows))
            console.print(
                f"No {name} is equal to it. The nearest: {keys}. Ask softly: --similarity {soft}",
                style="yellow", markup=False, highlight=False,
            )  # fmt: skip


def _csv(**given: str | None) -> dict[str, Any] | None:
    """What was said of a CSV file; None where nothing was. ``\\t`` is a tab, as shells write it."""
    said = {name: value.replace("\\t", "\t") for name, value in given.items() if value is not None}
    return said or None


def _column_type(word: str) -> tuple[str, str]:
    column, sign, kind = word.rpartition("=")
    if not sign:
        raise ValueError(f"--type must be given as column=type; got {word!r}")
    return column, kind


def _cutoffs(cutoff: float, key: list[str], similarity: list[str] | None) -> dict[str, float]:
    """One cutoff for all keys that are compared as texts."""
    named = _for_keys(similarity or ["equal"], key, "similarity")
    return {name: cutoff for name in key if named[name] == "fuzzy"}


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
    with progress_bar("reading") as progress:
        answers: list[AnyAnswer] = database.query(asked, **options, progress=progress)
    if plot is not None:
        if not hasattr(answers[0], "plot"):
            raise ValueError("--plot draws one answer, or with --curve a line for each group")
        answers[0].plot(plot)
    if out is not None:
        _write(answers, out)
    told = Console(stderr=True, soft_wrap=True)  # not into answers that another program reads
    for name, path in (("figure", plot), ("answers", out)):
        if path is not None:
            told.print(f"{name}: {path}", style="dim", markup=False, highlight=False)
    if json:
        _print_json([answer.to_dict() for answer in answers])
    elif out is None or len(answers) <= 10:
        for answer in answers:
            console.print(answer)
            _suggest(console, database, answer, options)
    else:
        console.print(f"{len(answers):,} answers in {out}", markup=False)


def _draw(
    database: Database,
    grid: list[Any],
    options: dict[str, Any],
    json: bool,
    plot: Path | None,
    out: Path | None,
) -> None:
    """Ask for a curve, and show it."""
    asked = {name: options[name] for name in ("where", "bandwidth", "by", "weight", "decay")}
    named = options["similarity"]
    soft = {name: "gaussian" if how == "equal" else how for name, how in named.items()}
    with progress_bar("reading") as progress:
        curve = database.curve(grid, similarity=soft, **asked, progress=progress)
    if plot is not None:
        curve.plot(plot)
    if out is not None:
        _write([curve], out)
    if json:
        _print_json(curve.to_dict())
    else:
        Console().print(curve)


def _print_json(told: Any) -> None:
    import json

    print(json.dumps(told, indent=1))  # noqa: T201


def _grid(database: Database, curve: str) -> list[Any]:
    """Keys from one to another, evenly spread."""
    from qkv.table.columns import parsed

    low, high, points = (*[part.strip() for part in curve.split(",")], "", "", "")[:3]
    if curve.count(",") != 2 or not points.isdigit() or int(points) < 2:
        raise ValueError(f"--curve must be FROM,TO,POINTS, such as '2,4,50'; got {curve!r}")
    name = database.key[0]
    first, last = (parsed(word, database.schema.field(name).type, name) for word in (low, high))
    steps = int(points) - 1
    try:
        return [first + (last - first) * (step / steps) for step in range(steps)] + [last]
    except TypeError as error:
        raise ValueError(f"--curve needs a key of numbers or dates; {name!r} is none") from error


def _decay(database: Database, decay: str | None, as_of: str | None) -> tuple[Any, ...] | None:
    """A column and a half-life, and the date as of which is asked."""
    from qkv.table.columns import parsed
    from qkv.table.where import check_column

    if decay is None:
        if as_of is not None:
            raise ValueError("--as-of needs --decay, which says what ages")
        return None
    column, sign, half = decay.rpartition("=")
    if not sign:
        raise ValueError(f"--decay must be given as column=half-life; got {decay!r}")
    check_column(database.schema, column, "--decay")
    life: Any = half
    with contextlib.suppress(ValueError):
        life = float(half)
    if as_of is None:
        return column, life
    return column, life, parsed(as_of, database.schema.field(column).type, column)


@contextlib.contextmanager
def progress_bar(work: str) -> Iterator[Progress]:
    """A bar on the error stream, for people only; gone when done."""
    from rich.progress import Progress as Bar

    console = Console(stderr=True)
    with Bar(console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task(work, total=None)
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

    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            for name in database.key:
                if name not in (reader.fieldnames or []):
                    raise ValueError(
                        f"{path.name!r} must have a column {name!r}, as the key is called"
                    )
            return [
                {
                    name: parsed(row[name] or "", database.schema.field(name).type, name)
                    for name in database.key
                }
                for row in reader
            ]
    except csv.Error as error:
        raise ValueError(f"{path.name!r} cannot be read as CSV: {error}") from error


def _write(answers: list[Any], path: Path) -> None:
    """All answers as one table; an interrupted write leaves no half."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    if path.suffix.lower() not in (".parquet", ".csv"):
        raise ValueError(f"--out must end in .parquet or .csv; got {path.name!r}")
    whole = pa.concat_tables([a.to_arrow() for a in answers], promote_options="permissive")
    with replacing(path) as half:
        if path.suffix.lower() == ".csv":
            flat = [name for name in whole.column_names if not name.endswith("distribution")]
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
