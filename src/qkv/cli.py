"""Words to calls, nothing else. Heavy imports wait until a command needs them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

import qkv

app = typer.Typer(
    name="qkv",
    help="An attention engine: ask soft questions, see what was attended to, and why.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def main() -> None:
    """The command `qkv`: a user's mistake is one line and exit code 2, never a traceback."""
    try:
        app()
    except (ValueError, TypeError, MemoryError, OSError) as error:
        Console(stderr=True, soft_wrap=True).print(f"qkv: {error}", style="red", markup=False)
        sys.exit(2)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"qkv {qkv.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """An attention engine: ask soft questions, see what was attended to, and why."""


@app.command()
def gallery(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which examples to show; all if none is named.")
    ] = None,
) -> None:
    """Show worked examples of attention, and which operator computed them."""
    from qkv.gallery import show

    show(Console(), names or [])


@app.command()
def explain(
    queries: Annotated[int, typer.Option(min=1, help="How many queries.")] = 4096,
    keys: Annotated[int, typer.Option(min=1, help="How many keys.")] = 4096,
    dim: Annotated[int, typer.Option(min=1, help="Dimensions of queries and keys.")] = 64,
    value_dim: Annotated[int, typer.Option(min=1, help="Dimensions of values.")] = 64,
    similarity: Annotated[
        str, typer.Option(help="A similarity by name, or additive, bilinear or gated.")
    ] = "scaled_dot",
    hidden: Annotated[int, typer.Option(min=1, help="Hidden dimensions of additive.")] = 128,
    causal: Annotated[bool, typer.Option("--causal", help="Look back only.")] = False,
    window: Annotated[
        int | None, typer.Option(min=0, help="See only so many keys to either side.")
    ] = None,
) -> None:
    """Say how random data of these sizes would be attended to, why, and at what cost."""
    import torch

    from qkv import mask as masks
    from qkv.gallery import print_plan
    from qkv.pooling import explain as explain_call
    from qkv.similarity import learned

    mask: masks.Mask | None = masks.Causal() if causal else None
    if window is not None:
        band = masks.Window(window, window)
        mask = band if mask is None else mask & band
    query, key = torch.randn(queries, dim), torch.randn(keys, dim)
    chosen = learned(similarity, dim, dim, hidden) or similarity
    value = torch.empty(keys, value_dim)
    plan = explain_call(query, key, value, similarity=chosen, mask=mask)
    print_plan(Console(), plan)


@app.command()
def warmup() -> None:
    """Compile all fused kernels ahead, so that no first call has to wait."""
    from qkv.operators.fused import warmup as compile_all

    with Console().status("compiling") as status:
        compile_all(lambda kernel: status.update(f"compiled {kernel}"))


@app.command()
def bench(
    suite: Annotated[str, typer.Argument(help="What to measure: core, fused or layers.")] = "core",
    json: Annotated[
        Path | None, typer.Option(help="Write the figures to this file as JSON, too.")
    ] = None,
) -> None:
    """Measure speed and memory against peers, as ratios within one run."""
    from qkv.benchmarks import run

    run(suite, Console(), json)
