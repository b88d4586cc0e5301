"""`qkv explain`."""

from __future__ import annotations

import functools
import operator
import re
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console

from qkv.cli.app import app
from qkv.cli.names import check_similarity
from qkv.cli.option_groups import with_option_groups

if TYPE_CHECKING:
    from qkv.mask import Mask


@dataclass(frozen=True)
class _Sizes:
    queries: Annotated[int, typer.Option(min=1, help="How many queries.")] = 4096
    keys: Annotated[int, typer.Option(min=1, help="How many keys.")] = 4096
    dim: Annotated[int, typer.Option(min=1, help="Dimensions of queries and keys.")] = 64
    value_dim: Annotated[int, typer.Option(min=1, help="Dimensions of values.")] = 64


@dataclass(frozen=True)
class _Masks:
    causal: Annotated[
        bool, typer.Option("--causal", help="See only keys up to the query's position.")
    ] = False
    window: Annotated[
        int | None, typer.Option(min=0, help="See only so many keys to either side.")
    ] = None
    blocks: Annotated[
        int | None, typer.Option(min=1, help="See only keys of the same block of this size.")
    ] = None
    topk: Annotated[
        int | None, typer.Option(min=1, help="See only this many keys, of highest score.")
    ] = None

    def mask(self) -> Mask | None:
        """Their conjunction; None where none is given."""
        from qkv import mask

        masks: list[Mask] = [mask.Causal()] if self.causal else []
        masks += [] if self.window is None else [mask.Window(self.window, self.window)]
        masks += [] if self.blocks is None else [mask.Blocks(self.blocks)]
        masks += [] if self.topk is None else [mask.TopK(self.topk)]
        return functools.reduce(operator.and_, masks) if masks else None


@dataclass(frozen=True)
class _Processes:
    ranks: Annotated[
        int | None, typer.Option(min=1, help="Distribute queries and keys over so many processes.")
    ] = None
    layout: Annotated[str, typer.Option(help="How: replicated, ring or zigzag.")] = "ring"
    heads: Annotated[int, typer.Option(min=1, help="With --ranks: heads, times batch.")] = 1


@app.command(short_help="Say how a computation of some size would be done.")
@with_option_groups
def explain(
    *,
    sizes: _Sizes,
    similarity: Annotated[
        str, typer.Option(help="A similarity by name, or additive, bilinear or gated.")
    ] = "scaled_dot",
    hidden: Annotated[int, typer.Option(min=1, help="Hidden dimensions of additive.")] = 128,
    masks: _Masks,
    processes: _Processes,
    rows: Annotated[
        int | None, typer.Option(min=1, help="Ask a table of so many rows instead.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=1, help="With --rows: the workers of a Dask cluster.")
    ] = 1,
) -> None:
    """Say how random data of these sizes would be attended to, why, and at what cost.

    With --ranks, or --rows and --workers: what it would cost to distribute the work.
    """
    console = Console()
    if rows is not None:
        from qkv.cluster.costs import table_costs

        console.print(str(table_costs(rows, workers)), markup=False, highlight=False)
    elif processes.ranks is not None:
        _explain_ranks(console, sizes, processes, processes.ranks, masks.causal)
    else:
        _explain_call(console, sizes, similarity, hidden, masks)


def _explain_call(
    console: Console, sizes: _Sizes, similarity: str, hidden: int, masks: _Masks
) -> None:
    """How one process would compute it."""
    check_similarity(similarity)
    import torch

    from qkv.pooling import explain
    from qkv.similarity import learned

    query, key = torch.randn(sizes.queries, sizes.dim), torch.randn(sizes.keys, sizes.dim)
    value = torch.empty(sizes.keys, sizes.value_dim)
    chosen = learned(similarity, sizes.dim, sizes.dim, hidden) or similarity
    plan = explain(query, key, value, similarity=chosen, mask=masks.mask())
    for line in str(plan).split("\n"):
        console.print(_hanging(line, console.width), markup=False, highlight=False, soft_wrap=True)


def _explain_ranks(
    console: Console, sizes: _Sizes, processes: _Processes, ranks: int, causal: bool
) -> None:
    """What each of so many processes would send and hold, in float32."""
    from qkv.cluster.costs import Rates, tensor_plan, tensor_seconds
    from qkv.cluster.sharding import check_layout, even_lengths

    n, m, dim, value_dim = sizes.queries, sizes.keys, sizes.dim, sizes.value_dim
    is_shared = check_layout(processes.layout) != "replicated"
    plan = tensor_plan(
        ranks=ranks,
        layout=processes.layout,
        entries=processes.heads,
        queries=even_lengths(n, ranks) if is_shared else [n] * ranks,
        keys=even_lengths(m, ranks),
        sizes=(dim, dim, value_dim),
        itemsize=4,
    )
    pairs = processes.heads * n * m * (0.5 if causal else 1.0)
    seconds = tensor_seconds(plan, pairs, (dim, value_dim), Rates())
    console.print(str(plan), markup=False, highlight=False, soft_wrap=True)
    console.print(
        f"about {seconds:,.3g} s forwards, at the rates of one core here and a link of 1 GB/s",
        highlight=False,
    )


def _hanging(line: str, width: int) -> str:
    """The line wrapped to the width, with a hanging indent below its first words."""
    words = re.match(r"\W*(?:\w+:?\s+)?", line)
    indent = min(words.end() if words else 0, width // 2)
    return textwrap.fill(line, width, subsequent_indent=" " * indent, drop_whitespace=True)
