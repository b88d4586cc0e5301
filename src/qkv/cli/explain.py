"""`qkv explain`."""

from __future__ import annotations

import re
import textwrap
from typing import Annotated

import typer
from rich.console import Console

from qkv.cli.app import app
from qkv.cli.names import check_similarity


@app.command(short_help="Say how a computation of some size would be done.")
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
    check_similarity(similarity)
    import torch

    from qkv import mask as masks
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
    console = Console()
    for line in str(plan).split("\n"):
        console.print(_hanging(line, console.width), markup=False, highlight=False, soft_wrap=True)


def _hanging(line: str, width: int) -> str:
    """The line folded to the width, its rest below where its words began."""
    words = re.match(r"\W*(?:\w+:?\s+)?", line)
    indent = min(words.end() if words else 0, width // 2)
    return textwrap.fill(line, width, subsequent_indent=" " * indent, drop_whitespace=True)
