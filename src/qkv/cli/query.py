"""`qkv query`."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qkv.cli import query_parsing
from qkv.cli.app import app
from qkv.cli.names import check_file, check_suffix
from qkv.cli.negative import NegativeNumbers
from qkv.cli.option_groups import with_option_groups
from qkv.cli.query_output import Output, answer, draw_curve

if TYPE_CHECKING:
    from qkv.table import Database

#: What `qkv query --demo` asks by default: the sample, its key, its value, a query, options.
_DEMO: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "students.csv": ("name", "major", "John Doe", {}),
    "salaries.csv": ("gpa", "salary", "3.5", {"similarity": "gaussian", "bandwidth": 0.1}),
}


@dataclass(frozen=True)
class _Question:
    """Which columns are compared, how, and which rows count how much."""

    key: Annotated[
        list[str] | None, typer.Option(help="The key column; repeat it for several.")
    ] = None
    value: Annotated[
        list[str] | None, typer.Option(help="The value column; repeat it for several.")
    ] = None
    similarity: Annotated[
        list[str] | None,
        typer.Option(help="equal, gaussian, boxcar, fuzzy, …: one, or one for each key."),
    ] = None
    bandwidth: Annotated[
        list[str] | None,
        typer.Option(help="The bandwidth: one, or one for each key ('-' for none)."),
    ] = None
    cutoff: Annotated[
        float | None,
        typer.Option(help="The least ratio at which fuzzy matches texts, 0 to 1 [0.6]."),
    ] = None
    where: Annotated[
        str | None, typer.Option(help="Which rows: \"year >= 2020 and field = 'civil'\".")
    ] = None
    by: Annotated[
        list[str] | None, typer.Option(help="An answer for each group: the column that makes them.")
    ] = None
    weight: Annotated[
        str | None, typer.Option(help="A column of numbers by which rows are multiplied.")
    ] = None
    decay: Annotated[
        str | None,
        typer.Option(help="Older rows weigh less: date=90d halves them every 90 days."),
    ] = None
    as_of: Annotated[
        str | None, typer.Option(help="With --decay: the date after which rows weigh nothing.")
    ] = None
    curve: Annotated[
        str | None, typer.Option(help="A curve instead: '2,4,50' asks 50 keys from 2 to 4.")
    ] = None

    def options(self, database: Database) -> dict[str, Any]:
        """As `Database.query` takes them."""
        key, cutoff = self.key or [], self.cutoff
        decay = query_parsing.decay(database, self.decay, self.as_of)
        options: dict[str, Any] = {"by": self.by or None, "weight": self.weight, "decay": decay}
        similarity = query_parsing.for_keys(self.similarity or ["equal"], key, "similarity")
        if cutoff is not None and len(key) > 1:
            options["cutoff"] = {name: cutoff for name in key if similarity[name] == "fuzzy"}
        elif cutoff is not None:
            options["cutoff"] = cutoff
        bandwidth = query_parsing.for_keys(self.bandwidth or ["-"], key, "bandwidth")
        widths = {n: query_parsing.width(word) for n, word in bandwidth.items() if word != "-"}
        return options | {"similarity": similarity, "bandwidth": widths}


@dataclass(frozen=True)
class _Reading:
    """Which table of a database is read, or how a CSV file is written."""

    table: Annotated[str | None, typer.Option(help="The table of a database.")] = None
    sql: Annotated[str | None, typer.Option(help="Or the query that gives its rows.")] = None
    delimiter: Annotated[
        str | None,
        typer.Option(help="What separates the columns of a CSV file, where not detected."),
    ] = None
    encoding: Annotated[str | None, typer.Option(help="Its encoding: utf-8, latin-1, …")] = None
    decimal: Annotated[str | None, typer.Option(help="Its decimal sign: '.' or ','.")] = None
    thousands: Annotated[str | None, typer.Option(help="Its thousands separator.")] = None
    type: Annotated[
        list[str] | None,
        typer.Option(help="What a column holds: zip=text. Also integer, number, date, …"),
    ] = None

    def open(self, source: str | Path, question: _Question) -> Database:
        from qkv.table import Database

        key, value = question.key or [], question.value or []
        values = value[0] if len(value) == 1 else value
        return Database(
            source, key=key, value=values, table=self.table, sql=self.sql, csv=self._csv()
        )

    def _csv(self) -> dict[str, Any] | None:
        """None where nothing is given. ``\\t`` is a tab, as shells write it."""
        given = {
            name: getattr(self, name) for name in ("delimiter", "encoding", "decimal", "thousands")
        }
        csv: dict[str, Any] = {
            name: text.replace("\\t", "\t") for name, text in given.items() if text is not None
        }
        if self.type:
            csv["types"] = dict(map(query_parsing.column_type, self.type))
        return csv or None


@app.command(cls=NegativeNumbers, short_help="Ask any table a soft question.")
@with_option_groups
def query(
    *,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="SOURCE QUERY...",
            help="A CSV or Parquet file or folder, a .duckdb file or a postgresql:// address; "
            "then what to ask it. A query for several keys has commas: '3.5,software'.",
        ),
    ] = None,
    question: _Question,
    reading: _Reading,
    queries: Annotated[
        Path | None, typer.Option(help="A CSV file of queries, with columns named as the keys.")
    ] = None,
    rows: Annotated[
        int | None,
        typer.Option(min=0, help="How many of the heaviest rows to show [5; none of groups]."),
    ] = None,
    output: Output,
    scheduler: Annotated[
        str | None,
        typer.Option(help="Read with a Dask cluster: the scheduler's address, tcp://…:8786."),
    ] = None,
    explain: Annotated[bool, typer.Option("--explain", help="Print the plan, and stop.")] = False,
    demo: Annotated[
        bool, typer.Option("--demo", help="Ask the sample tables, which are synthetic.")
    ] = False,
) -> None:
    """Ask any table a soft question: which value belongs to a key, or to keys near it."""
    words = words or []
    _check(words, demo, question, output)
    options: dict[str, Any] = {"where": question.where, "top": rows}
    if scheduler is not None:
        if question.curve is not None:
            raise ValueError("--curve is computed by this process: leave out --scheduler")
        from qkv.cluster.jobs import connect

        options["client"] = connect(scheduler)
    if demo and not words and queries is None and not question.key:
        _ask_samples(options, output, explain)
        return
    if demo:
        source: str | Path = _sample_with([*(question.key or []), *(question.value or [])])
    elif words:
        source, *words = words
    else:
        raise ValueError("query needs a source: a file, a folder or an address; or --demo")
    database = reading.open(source, question)
    options |= question.options(database)
    if question.curve is not None:
        if words or queries is not None:
            raise ValueError("--curve asks keys of its own; leave out other queries")
        draw_curve(database, query_parsing.grid(database, question.curve), options, output)
        return
    keys = query_parsing.keys_of_words(database, words)
    keys += query_parsing.keys_of_file(database, queries) if queries else []
    if not keys:
        raise ValueError("query needs something to ask: words after the source, or --queries")
    answer(database, keys, options, output, explain)


def _check(words: list[str], demo: bool, question: _Question, output: Output) -> None:
    """What can be checked before torch and pyarrow are imported."""
    asks_samples = demo and not words and not question.key
    if not asks_samples and not (question.key and question.value):
        raise ValueError("query needs --key and --value, the columns to ask and to answer from")
    if words and not demo:
        check_file(words[0], "the source")
    check_suffix(output.plot, "--plot", ".svg", ".pdf", ".png")
    check_suffix(output.out, "--out", ".parquet", ".csv")


def _ask_samples(options: dict[str, Any], output: Output, explain: bool) -> None:
    """The questions of `--demo`."""
    from qkv.table import Database

    for name, (key, value, word, more) in _DEMO.items():
        database = Database(_sample(name), key=key, value=value)
        keys = query_parsing.keys_of_words(database, [word])
        answer(database, keys, {**options, **more}, output, explain)


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
