"""`qkv join`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console

from qkv.atomic_write import replacing
from qkv.cli.app import app
from qkv.cli.progress import progress_bar

if TYPE_CHECKING:
    import pyarrow as pa

    from qkv.table import SoftJoin

#: Rows shown where nothing is written.
_SHOWN = 10


@app.command(short_help="Join two tables softly.")
def join(
    left: Annotated[str, typer.Argument(help="The table to complete: a file or a folder.")],
    right: Annotated[str, typer.Argument(help="The table to look in.")],
    on: Annotated[
        list[str],
        typer.Option(
            metavar="COLUMN:SIMILARITY[:BANDWIDTH]",
            help="What to compare, and how: name:fuzzy, date:gaussian:3, id:equal, time:nearest. "
            "LEFT=RIGHT:… where columns have different names. Repeat it for several.",
        ),
    ],
    take: Annotated[
        list[str] | None,
        typer.Option(help="A column of the right table; repeat it. Without it, all."),
    ] = None,
    top: Annotated[
        int, typer.Option(min=0, help="How many of the heaviest rows answer; 0 for all.")
    ] = 1,
    cutoff: Annotated[
        float | None, typer.Option(help="The least ratio, 0 to 1, at which fuzzy texts match.")
    ] = None,
    where: Annotated[
        str | None, typer.Option(help='Which rows of the right table may match: "price > 3".')
    ] = None,
    where_left: Annotated[
        str | None, typer.Option(help="Which rows of the left one to join.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write the join to this .parquet, .csv or .arrow file.")
    ] = None,
    explain: Annotated[
        bool, typer.Option("--explain", help="Say how the tables would be joined, and stop.")
    ] = False,
) -> None:
    """Join two tables softly: every row of one is answered by the other."""
    from qkv.table import SoftJoin
    from qkv.table.sources import open_source

    console = Console()
    sources = open_source(left), open_source(right)
    compared = [_compared(word, sources[0].schema) for word in on]
    if len({columns for columns, _, _ in compared}) < len(compared):
        raise ValueError("--on must name each column once")
    planned = SoftJoin(
        *sources,
        on={columns: similarity for columns, similarity, _ in compared},
        take=take or None,
        top=top or None,
        cutoff=cutoff,
        bandwidth={columns[0]: width for columns, _, width in compared if width is not None},
        where=where,
        where_left=where_left,
    )
    if explain:
        console.print(str(planned), markup=False, highlight=False, soft_wrap=True)
        return
    if out is not None:
        _write(planned, out)
    else:
        _show(planned, console)
    console.print(str(planned.report), markup=False, highlight=False)


def _compared(word: str, left: pa.Schema) -> tuple[tuple[str, str], str, float | None]:
    """A left and a right column, how they are compared, and how far."""
    columns, _, similarity = word.rpartition(":")
    width: float | None = None
    try:
        width = float(similarity)
        columns, _, similarity = columns.rpartition(":")
    except ValueError:
        pass
    if not columns or not similarity:
        raise ValueError(f"--on must be COLUMN:SIMILARITY[:BANDWIDTH]; got {word!r}")
    left_name, sign, right_name = columns.partition("=")
    # A column may have the sign in its name.
    return (
        ((left_name, right_name) if sign and columns not in left.names else (columns, columns)),
        similarity,
        width,
    )


def _show(planned: SoftJoin, console: Console) -> None:
    """The first rows."""
    from rich.table import Table
    from rich.text import Text

    from qkv.table.report import formatted

    rows: list[dict[str, Any]] = []
    with progress_bar("joining") as progress:
        for batch in planned.batches(progress):
            rows += batch.slice(0, max(0, _SHOWN - len(rows))).to_pylist()
    table = Table(box=None, padding=(0, 1), header_style="dim")
    for field in planned.schema:
        table.add_column(Text(field.name))
    for row in rows:
        table.add_row(*(Text(formatted(row[name])) for name in planned.schema.names))
    console.print(table)


def _write(planned: SoftJoin, path: Path) -> None:
    """Batch by batch; an interrupted write leaves no partial file."""
    with (
        replacing(path) as half,
        _writer(half, planned.schema) as writer,
        progress_bar("joining") as progress,
    ):
        for batch in planned.batches(progress):
            writer.write_batch(batch)


@contextmanager
def _writer(path: Path, schema: pa.Schema) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import csv, parquet

    suffix = path.suffix.lower()
    if suffix == ".parquet":
        with parquet.ParquetWriter(path, schema) as writer:
            yield writer
    elif suffix == ".csv":
        with csv.CSVWriter(path, schema) as writer:
            yield writer
    elif suffix == ".arrow":
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
            yield writer
    else:
        raise ValueError(f"--out must end in .parquet, .csv or .arrow; got {path.name!r}")
