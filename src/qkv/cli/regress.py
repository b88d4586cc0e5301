"""`qkv regress`."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from qkv.cli.app import app


@app.command()
def regress(
    file: Annotated[Path, typer.Argument(help="A table: CSV or Parquet.")],
    x: Annotated[str, typer.Option(help="The column to ask by.")],
    y: Annotated[str, typer.Option(help="The column to be answered.")],
    at: Annotated[list[float] | None, typer.Option(help="Where to ask; may be repeated.")] = None,
    kernel: Annotated[str, typer.Option(help="gaussian, boxcar, tricube, …")] = "gaussian",
    bandwidth: Annotated[
        str, typer.Option(help="A number, loo, aicc, gcv, scott, silverman or knn.")
    ] = "loo",
    degree: Annotated[int, typer.Option(min=0, max=1, help="0 fits means, 1 lines.")] = 0,
    level: Annotated[float, typer.Option(help="The share of observations to cover.")] = 0.9,
    plot: Annotated[
        Path | None, typer.Option(help="Draw data, curve and band to this file.")
    ] = None,
) -> None:
    """Fit a curve through two columns of a table, and answer with intervals."""
    import numpy as np
    from rich.table import Table

    from qkv.extras import need
    from qkv.regression import NadarayaWatsonRegressor

    key, value = _columns(file, x, y)
    chosen: Any = bandwidth
    with contextlib.suppress(ValueError):  # else a name, which the regressor checks
        chosen = float(bandwidth)
    model = NadarayaWatsonRegressor(kernel, chosen, degree, verbose=True).fit(key[:, None], value)
    console = Console()
    width = f"{model.bandwidth_[0]:.4g}"
    if model.width_.neighbors is not None:
        width = f"{model.width_.neighbors} nearest"
    console.print(
        f"{y} by {x}: {kernel}, bandwidth {width}, LOO R² {model.loo_score():.3f}, "
        f"n = {len(key):,}",
        markup=False,
        highlight=False,
    )
    asked = np.array(at) if at else np.linspace(key.min(), key.max(), 7)
    answer, interval = model.predict(asked[:, None]), model.predict_interval(asked[:, None], level)
    near = model.effective_neighbours(asked[:, None])
    table = Table(x, y, f"{level:.0%} of observations", "neighbours")
    for row in zip(asked, answer, interval, near, strict=True):
        table.add_row(f"{row[0]:.6g}", f"{row[1]:.4g}", f"{row[2][0]:.4g} to {row[2][1]:.4g}",
                      f"{row[3]:.0f}")  # fmt: skip
    console.print(table)
    if plot is not None:
        need("matplotlib", "plot")
        from qkv.plot import band, save

        curve = np.linspace(key.min(), key.max(), 401)
        band_at = model.predict_interval(curve[:, None], level)
        figure = band(
            key, value, curve, model.predict(curve[:, None]), band_at, names=(x, y), level=level
        )
        save(figure, plot)
        console.print(f"figure: {plot}", style="dim", markup=False, highlight=False)


def _columns(file: Path, x: str, y: str) -> tuple[Any, Any]:
    """Two columns of numbers; rows in which one is missing are left out."""
    import numpy as np

    from qkv.extras import need

    if not file.exists():
        raise ValueError(f"there is no file {str(file)!r}")
    if file.suffix.lower() in (".parquet", ".pq"):
        table = need("pyarrow.parquet", "table").read_table(file)
    elif file.suffix.lower() == ".csv":
        table = need("pyarrow.csv", "table").read_csv(file)
    else:
        raise ValueError(f"a table's name must end in .csv or .parquet; got {file.name!r}")
    compute, types = need("pyarrow.compute", "table"), need("pyarrow", "table").types
    found = []
    for name in (x, y):
        if name not in table.column_names:
            raise ValueError(
                f"a column must be one of {', '.join(table.column_names)}; got {name!r}"
            )
        kind = table.column(name).type
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)):
            raise ValueError(f"the column {name!r} must hold numbers; got {kind}")
        column = compute.cast(table.column(name), "float64")
        found.append(column.to_numpy())
    kept = np.isfinite(found[0]) & np.isfinite(found[1])
    if not kept.any():
        raise ValueError(f"no row of {file.name!r} has numbers in both {x!r} and {y!r}")
    return found[0][kept], found[1][kept]
