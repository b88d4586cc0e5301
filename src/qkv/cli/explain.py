"""`qkv explain`."""

from __future__ import annotations

import functools
import operator
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
    blocks: Annotated[
        int | None, typer.Option(min=1, help="See only the own block of so many keys.")
    ] = None,
    topk: Annotated[int | None, typer.Option(min=1, help="See only so many of the best.")] = None,
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Share queries and keys out to so many processes.")
    ] = None,
    layout: Annotated[str, typer.Option(help="How: replicated, ring or zigzag.")] = "ring",
    heads: Annotated[int, typer.Option(min=1, help="With --ranks: heads, times batch.")] = 1,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Ask a table of so many rows instead.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="With --rows: the workers of a Dask cluster.")
    ] = 1,
) -> None:
    """Say how random data of these sizes would be attended to, why, and at what cost.

    With --ranks, or --rows and --workers: what it would cost to share the work out.
    """
    if rows is not None:
        from qkv.cluster.costs import table_costs

        Console().print(str(table_costs(rows, workers)), markup=False, highlight=False)
        return
    if ranks is not None:
        _explain_ranks((queries, keys), (dim, value_dim), ranks, layout, heads, causal)
        return
    check_similarity(similarity)
    import torch

    from qkv import mask as masks
    from qkv.pooling import explain as explain_call
    from qkv.similarity import learned

    chosen_masks: list[masks.Mask] = [masks.Causal()] if causal else []
    chosen_masks += [] if window is None else [masks.Window(window, window)]
    chosen_masks += [] if blocks is None else [masks.Blocks(blocks)]
    chosen_masks += [] if topk is None else [masks.TopK(topk)]
    mask = functools.reduce(operator.and_, chosen_masks) if chosen_masks else None
    query, key = torch.randn(queries, dim), torch.randn(keys, dim)
    chosen = learned(similarity, dim, dim, hidden) or similarity
    value = torch.empty(keys, value_dim)
    plan = explain_call(query, key, value, similarity=chosen, mask=mask)
    console = Console()
    for line in str(plan).split("\n"):
        console.print(_hanging(line, console.width), markup=False, highlight=False, soft_wrap=True)


def _explain_ranks(
    counts: tuple[int, int], sizes: tuple[int, int], ranks: int, layout: str, heads: int,
    causal: bool,
) -> None:  # fmt: skip
    """What each of so many processes would send and hold, in float32."""
    from qkv.cluster.costs import Rates, tensor_plan, tensor_seconds
    from qkv.cluster.sharding import check_layout, even_lengths

    n, m = counts
    dim, value_dim = sizes
    shared = check_layout(layout) != "replicated"
    plan = tensor_plan(
        ranks=ranks,
        layout=layout,
        entries=heads,
        queries=even_lengths(n, ranks) if shared else [n] * ranks,
        keys=even_lengths(m, ranks),
        sizes=(dim, dim, value_dim),
        itemsize=4,
    )
    pairs = heads * n * m * (0.5 if causal else 1.0)
    seconds = tensor_seconds(plan, pairs, (dim, value_dim), Rates())
    console = Console()
    console.print(str(plan), markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"about {seconds:,.3g} s forwards, at the rates of one core here and a link of 1 GB/s",
        highlight=False,
    )


def _hanging(line: str, width: int) -> str:
    """The line folded to the width, its rest below where its words began."""
    words = re.match(r"\W*(?:\w+:?\s+)?", line)
    indent = min(words.end() if words else 0, width // 2)
    return textwrap.fill(line, width, subsequent_indent=" " * indent, drop_whitespace=True)
