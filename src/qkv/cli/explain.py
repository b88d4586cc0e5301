"""`qkv explain`."""

from __future__ import annotations

import functools
import operator
from typing import Annotated

import typer
from rich.console import Console

from qkv.cli.app import app


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
    blocks: Annotated[
        int | None, typer.Option(min=1, help="See only the own block of so many keys.")
    ] = None,
    topk: Annotated[int | None, typer.Option(min=1, help="See only so many of the best.")] = None,
) -> None:
    """Say how random data of these sizes would be attended to, why, and at what cost."""
    import torch

    from qkv import mask as masks
    from qkv.gallery import print_plan
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
    print_plan(Console(), plan)
