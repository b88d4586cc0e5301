"""The answers of `qkv query`: printed, drawn and written to files."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from qkv.atomic_write import replacing
from qkv.cli.progress import progress_bar

if TYPE_CHECKING:
    from qkv.table import Database
    from qkv.table.answers import AnyAnswer


@dataclass(frozen=True)
class Output:
    """Where answers go besides the terminal, and how they are printed there."""

    plot: Annotated[Path | None, typer.Option(help="Draw the first answer to this file.")] = None
    out: Annotated[
        Path | None, typer.Option(help="Write all answers to this .parquet or .csv file.")
    ] = None
    json: Annotated[bool, typer.Option("--json", help="Print answers as JSON.")] = False


def answer(
    database: Database,
    keys: list[dict[str, Any]],
    options: dict[str, Any],
    output: Output,
    explain: bool,
) -> None:
    """Ask for each of these keys, and show the answers; or only the plan."""
    console = Console()
    if explain:
        plan = database.explain(keys, **options)
        console.print(str(plan), markup=False, highlight=False, soft_wrap=True)
        return
    with progress_bar("reading") as progress:
        answers: list[AnyAnswer] = database.query(keys, **options, progress=progress)
    if output.plot is not None:
        if not hasattr(answers[0], "plot"):
            raise ValueError("--plot draws one answer, or with --curve a line for each group")
        answers[0].plot(output.plot)
    if output.out is not None:
        _write(answers, output.out)
    errors = Console(stderr=True, soft_wrap=True)  # standard output may be read by a program
    for name, path in (("figure", output.plot), ("answers", output.out)):
        if path is not None:
            errors.print(f"{name}: {path}", style="dim", markup=False, highlight=False)
    if output.json:
        _print_json([each.to_dict() for each in answers])
    elif output.out is None or len(answers) <= 10:
        for each in answers:
            console.print(each)
            _suggest(console, database, each, options)
    else:
        console.print(f"{len(answers):,} answers in {output.out}", markup=False)


def draw_curve(
    database: Database, keys: list[Any], options: dict[str, Any], output: Output
) -> None:
    """Ask for a curve through these keys, and show it."""
    shared = {name: options[name] for name in ("where", "bandwidth", "by", "weight", "decay")}
    similarity = {
        name: "gaussian" if kernel == "equal" else kernel
        for name, kernel in options["similarity"].items()
    }
    with progress_bar("reading") as progress:
        curve = database.curve(keys, similarity=similarity, **shared, progress=progress)
    if output.plot is not None:
        curve.plot(output.plot)
    if output.out is not None:
        _write([curve], output.out)
    if output.json:
        _print_json(curve.to_dict())
    else:
        Console().print(curve)


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
    soft_options = {**options, "similarity": {name: soft}, "bandwidth": {}, "top": 3}
    soft_options.pop("by", None)
    with contextlib.suppress(ValueError, TypeError):  # the hint is optional
        near: Any = database.query(query, **soft_options)
        if near.found:
            keys = ", ".join(dict.fromkeys(str(row[name]) for row in near.rows))
            console.print(
                f"No {name} is equal to it. The nearest: {keys}. Ask softly: --similarity {soft}",
                style="yellow", markup=False, highlight=False,
            )  # fmt: skip


def _print_json(content: Any) -> None:
    import json

    print(json.dumps(content, indent=1))  # noqa: T201


def _write(answers: list[Any], path: Path) -> None:
    """All answers as one table; an interrupted write leaves no partial file."""
    import pyarrow as pa
    from pyarrow import csv as arrow_csv
    from pyarrow import parquet

    if path.suffix.lower() not in (".parquet", ".csv"):
        raise ValueError(f"--out must end in .parquet or .csv; got {path.name!r}")
    table = pa.concat_tables([a.to_arrow() for a in answers], promote_options="permissive")
    with replacing(path) as partial:
        if path.suffix.lower() == ".csv":
            flat = [name for name in table.column_names if not name.endswith("distribution")]
            arrow_csv.write_csv(table.select(flat), partial)
        else:
            parquet.write_table(table, partial)
