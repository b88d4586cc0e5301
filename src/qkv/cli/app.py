"""The application that every command registers with."""

from __future__ import annotations

from typing import Annotated

import typer

import qkv

app = typer.Typer(
    name="qkv",
    help="An attention engine: ask soft questions, see what was attended to, and why.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help is plain text: brackets say defaults and are no markup
)


def _version(requested: bool) -> None:
    if requested:
        typer.echo(f"qkv {qkv.__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """An attention engine: ask soft questions, see what was attended to, and why."""
