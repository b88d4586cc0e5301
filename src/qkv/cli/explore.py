"""`qkv explore`."""

from __future__ import annotations

from typing import Annotated

import typer

from qkv.cli.app import app


@app.command(short_help="Explore attention in the browser.")
def explore(
    open: Annotated[
        str | None,
        typer.Option(
            metavar="FILE_OR_MODEL",
            help="A table, a database, a folder of `qkv translate train`, or a Hugging Face model.",
        ),
    ] = None,
    table: Annotated[
        str | None, typer.Option(help="The table, where --open is a database.")
    ] = None,
    port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="0 takes any.  [8642, or any]")
    ] = None,
    host: Annotated[
        str, typer.Option(help="Where to listen; beyond this machine, a token is needed.")
    ] = "127.0.0.1",
    browser: Annotated[bool, typer.Option(help="Open the page in a browser.")] = True,
) -> None:
    """Explore attention in the browser: pooling, similarities, sentences, tables, translation."""
    from qkv.optional_dependencies import require

    for package in ("starlette", "uvicorn"):
        require(package, "explore")
    from qkv.explore import serve
    from qkv.explore.desk import Desk
    from qkv.explore.opened import open_what

    if table is not None and open is None:
        raise ValueError("--table names a table of the database given with --open")
    opened = None if open is None else open_what(open, table)
    serve(Desk(opened), host, port, browser, typer.echo)
