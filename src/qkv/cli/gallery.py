"""`qkv gallery`."""

from __future__ import annotations

from typing import Annotated

import typer
from rich.console import Console

from qkv.cli.app import app


@app.command()
def gallery(
    names: Annotated[
        list[str] | None, typer.Argument(help="Which examples to show; all if none is named.")
    ] = None,
) -> None:
    """Show worked examples of attention, and which operator computed them."""
    from qkv.gallery import show

    show(Console(), names or [])
