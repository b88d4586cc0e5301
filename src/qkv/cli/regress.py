"""`qkv regress`."""

from __future__ import annotations

import contextlib
import math
import warnings
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from qkv.cli.app import app
from qkv.cli.names import check_file, check_suffix, did_you_mean

SHOWN = 20  # rows of answers that are printed


@app.command(short_help="Fit a curve through columns of a table.")
def regress(
    file: Annotated[
        Path, typer.Argument(help="A table: CSV, Parquet or Arrow, or a folder of them.")
    ],
    x: Annotated[list[str], typer.Option(help="A column to ask by; may be repeated.")],
    y: Annotated[str, typer.Option(help="The column to be answered.")],
    at: Annotated[
        list[str] | None,
        typer.Option(help="Where to ask, columns separated by commas; may be repeated."),
    ] = None,
    queries: Annotated[Path | None, typer.Option(help="Ask with the rows of this table.")] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write rows and answers to this file: CSV or Parquet.")
    ] = None,
    kernel: Annotated[str, typer.Option(help="gaussian, boxcar, tricube, …")] = "gaussian",
    bandwidth: Annotated[
        str,
        typer.Option(
            help="Numbers, one or one for each column, loo, aicc, gcv, scott, silverman or knn."
        ),
    ] = "loo",
    degree: Annotated[int, typer.Option(min=0, max=1, help="0 fits means, 1 lines.")] = 0,
    level: Annotated[float, typer.Option(help="The share of observations to cover.")] = 0.9,
    plot: Annotated[
        Path | None, typer.Option(help="Draw data, curve and band to this file.")
    ] = None,
) -> None:
    """Fit a curve through columns of a table, and answer with intervals.

    Columns of text are categories, dates count in days, other times in seconds. Rows without a y
    are left out.
    """
    if at and queries:
        raise ValueError("--at and --queries both say where to ask; give one of them")
    check_file(file, "the table")
    check_suffix(plot, "--plot", ".svg", ".pdf", ".png")
    check_suffix(out, "--out", ".csv", ".parquet")
    from qkv.regression import BandwidthWarning, NadarayaWatsonRegressor

    # A row without its only column has no information, and nearest neighbours need all columns.
    table, target = _examples(file, x, y, needs_all=len(x) == 1 or bandwidth == "knn")
    model = NadarayaWatsonRegressor(
        kernel, _bandwidth(bandwidth), degree, categorical="auto", verbose=True
    )
    console = Console()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", BandwidthWarning)
        model.fit(table, target)
    for note in dict.fromkeys(str(each.message) for each in caught):
        console.print(f"note: {note}", style="dim", markup=False, highlight=False)
    console.print(_summary(model, x, y, kernel), markup=False, highlight=False)
    if queries is not None:
        source = _rows(queries, x)
    elif at:
        source = _typed(at, table)
    else:
        source = _evenly_spaced(model, table)
    _answer(console, model, source, (x, y), level, out)
    if plot is not None:
        from qkv.visualization.plot import save

        save(model.plot(level), plot)
        console.print(f"figure: {plot}", style="dim", markup=False, highlight=False)


def _rows(file: Path, columns: list[str]) -> Any:
    """The rows of a file, batch by batch, read as `qkv query` reads it."""
    import pyarrow as pa

    from qkv.table.sources import Request, open_source

    source = open_source(file, needed=columns)
    scan = source.scan(Request(list(source.schema.names), whole_rows=False))
    return pa.RecordBatchReader.from_batches(source.schema, scan.batches())


def _examples(file: Path, x: list[str], y: str, needs_all: bool) -> tuple[Any, Any]:
    """The columns x of the rows that have a y, and y; only of rows with all x if `needs_all`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    table = _rows(file, [*x, y]).read_all()
    for name in (*x, y):
        if name not in table.column_names:
            raise ValueError(
                f"a column must be one of {', '.join(table.column_names)}; got {name!r}"
                f"{did_you_mean(name, table.column_names)}"
            )
    kind = table.column(y).type
    if not (pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_decimal(kind)):
        raise ValueError(f"the column {y!r} must hold numbers; got {kind}")
    is_usable = pc.is_finite(pc.cast(table.column(y), "float64"))
    for name in x if needs_all else []:
        is_usable = pc.and_kleene(is_usable, pc.is_valid(table.column(name)))
    table = table.filter(pc.fill_null(is_usable, False))
    if len(table) == 0:
        raise ValueError(f"no row of {file.name!r} has both {', '.join(x)} and a number in {y!r}")
    return table.select(x), pc.cast(table.column(y), "float64").to_numpy()


def _bandwidth(text: str) -> Any:
    with contextlib.suppress(ValueError):  # else a name, which the regressor checks
        numbers = [float(part) for part in text.split(",")]
        return numbers[0] if len(numbers) == 1 else numbers
    return text


def _summary(model: Any, x: list[str], y: str, kernel: str) -> str:
    widths = [f"{width:.4g}" for width in model.bandwidth_]
    if len(x) > 1:
        widths = [
            f"{column.name} {width}"
            for column, width in zip(model.columns_.numbers, widths, strict=True)
        ]
    width = f"bandwidth {', '.join(widths)}" if widths else "no numbers"
    if model.width_.neighbors is not None:
        width = f"bandwidth {model.width_.neighbors} nearest"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the summary mentions it
        score = model.loo_score()
    error = "LOO R² needs two rows" if math.isnan(score) else f"LOO R² {score:.3f}"
    return f"{y} by {', '.join(x)}: {kernel}, {width}, {error}, n = {len(model.rows_):,}"


def _typed(at: list[str], table: Any) -> Any:
    """The queries of `--at`, in the types of the columns x."""
    import pyarrow as pa

    names = table.column_names
    parts = [each.split(",") if len(names) > 1 else [each] for each in at]
    for each, typed in zip(at, parts, strict=True):
        if len(typed) != len(names):
            raise ValueError(
                f"--at must have one entry for each of {', '.join(names)}; got {each!r}"
            )
    columns = {}
    for name, entries in zip(names, zip(*parts, strict=True), strict=True):
        kind = table.column(name).type
        if pa.types.is_integer(kind) or pa.types.is_decimal(kind):
            kind = pa.float64()
        try:
            columns[name] = pa.array([entry.strip() for entry in entries]).cast(kind)
        except pa.ArrowInvalid as error:
            raise ValueError(
                f"--at must hold entries of the column {name!r} ({kind}): {error}"
            ) from None
    return pa.table(columns)


def _evenly_spaced(model: Any, table: Any) -> Any:
    """Seven evenly spaced queries along a single column of numbers, or seven of the rows."""
    import numpy as np
    import pyarrow as pa

    numbers = model.columns_.numbers
    if len(numbers) == table.num_columns == 1 and numbers[0].counted_in is None:
        key = model.examples_.keys.number[:, 0]
        return pa.table({numbers[0].name: np.linspace(key.min(), key.max(), 7)})
    return table.take(np.unique(np.linspace(0, len(table) - 1, 7).astype(int)))


def _answer(
    console: Console, model: Any, source: Any, names: tuple[list[str], str], level: float,
    out: Path | None,
) -> None:  # fmt: skip
    """Print the first answers, and write all of them to `out`."""
    from rich.table import Table

    from qkv.table.report import formatted

    x, y = names
    shown, total = Table(*x, y, f"{level:.0%} of observations", "neighbours"), 0
    with contextlib.ExitStack() as stack:
        write = None if out is None else _writer(stack, out)
        for batch in model.predict_batches(source, level):
            first = batch.slice(0, max(0, SHOWN - total))
            total += len(batch)
            if len(first):
                near = model.effective_neighbours(_columns(first, x))
                answer, low, high = (first.column(first.num_columns - k) for k in (3, 2, 1))
                for row in range(len(first)):
                    entries = [_formatted(first.column(name)[row].as_py()) for name in x]
                    bounds = f"{formatted(low[row].as_py())} to {formatted(high[row].as_py())}"
                    shown.add_row(
                        *entries, formatted(answer[row].as_py()), bounds, f"{near[row]:.0f}"
                    )
            if write is not None:
                write(batch)
    console.print(shown)
    if total > SHOWN and out is None:
        console.print(f"{SHOWN} of {total:,} rows; --out writes all", style="dim", highlight=False)
    if out is not None:
        console.print(f"{total:,} rows: {out}", style="dim", markup=False, highlight=False)


def _columns(batch: Any, x: list[str]) -> Any:
    import pyarrow as pa

    return pa.Table.from_batches([batch.select(x)])


def _formatted(entry: Any) -> str:
    if entry is None:
        return "missing"
    return f"{entry:.6g}" if isinstance(entry, float) else str(entry)


def _writer(stack: contextlib.ExitStack, out: Path) -> Any:
    """A function that writes batches to a file, which replaces `out` once all are written."""
    from qkv.atomic_write import replacing
    from qkv.optional_dependencies import require

    kind = out.suffix.lower()
    if kind not in (".csv", ".parquet"):
        raise ValueError(f"--out must end in .csv or .parquet; got {out.name!r}")
    partial = stack.enter_context(replacing(out))
    opened: list[Any] = []

    def write(batch: Any) -> None:
        if not opened:
            module = require("pyarrow.csv" if kind == ".csv" else "pyarrow.parquet", "table")
            make = module.CSVWriter if kind == ".csv" else module.ParquetWriter
            opened.append(stack.enter_context(make(partial, batch.schema)))
        (opened[0].write if kind == ".csv" else opened[0].write_batch)(batch)

    return write
