"""`qkv bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from qkv.cli.app import app


@app.command()
def bench(
    suite: Annotated[
        str,
        typer.Argument(help="What to measure: core, fused, regress, table, layers or translate."),
    ] = "core",
    json: Annotated[
        Path | None, typer.Option(help="Write the figures to this file as JSON, too.")
    ] = None,
) -> None:
    """Measure speed and memory against peers, as ratios within one run."""
    from qkv.benchmarks import run

    run(suite, Console(), json)
