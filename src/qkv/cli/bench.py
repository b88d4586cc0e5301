"""`qkv bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from qkv.benchmarks import SUITES
from qkv.cli.app import app
from qkv.cli.names import did_you_mean


@app.command(short_help="Measure speed and memory against peers.")
def bench(
    suite: Annotated[
        str,
        typer.Argument(help=f"What to measure: {', '.join(SUITES[:-1])} or {SUITES[-1]}."),
    ] = "core",
    json: Annotated[
        Path | None, typer.Option(help="Write the figures to this file as JSON, too.")
    ] = None,
    part: Annotated[
        str | None, typer.Option(help="Measure only this part of a suite that has parts.")
    ] = None,
    costs: Annotated[
        Path | None,
        typer.Option(help="With crossover: write this machine's costs to this file, too."),
    ] = None,
) -> None:
    """Measure speed and memory against peers, as ratios within one run."""
    if costs is not None and suite != "crossover":
        raise typer.BadParameter("is measured by `qkv bench crossover` only", param_hint="--costs")
    if suite not in SUITES:
        raise ValueError(
            f"a benchmark must be one of {', '.join(SUITES)}; got {suite!r}"
            f"{did_you_mean(suite, SUITES)}"
        )
    from qkv.benchmarks import run

    run(suite, Console(), json, part)
    if costs is not None:
        from qkv.benchmarks.crossover import write_costs

        console = Console()
        with console.status("measuring costs"):
            count = write_costs(costs)
        console.print(f"{count} lines written; QKV_COSTS={costs} makes the planner use them")
