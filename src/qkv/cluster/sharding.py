"""Who holds which positions of a sequence."""

from __future__ import annotations

from itertools import accumulate
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from qkv.cluster.exchange import Exchange

#: "replicated": all ranks have all queries, and each some keys. "ring": each has the queries and
#: keys of a run of positions. "zigzag": of two runs, one from each end, so that under Causal all
#: have as much to do.
Layout: TypeAlias = Literal["replicated", "ring", "zigzag"]
LAYOUTS = ("replicated", "ring", "zigzag")


class Chunk(NamedTuple):
    """A run of positions of the whole sequence, and where it begins in a shard."""

    position: int
    length: int
    offset: int


def chunks(lengths: list[int], layout: Layout) -> list[list[Chunk]]:
    """The runs of positions that each rank holds, given how many positions each holds."""
    if layout != "zigzag":
        starts = [0, *accumulate(lengths)]
        return [[Chunk(start, own, 0)] for start, own in zip(starts, lengths, strict=False)]
    # Rank r holds the runs r and 2·ranks − 1 − r; of an odd number the first is the longer.
    halves = [(own - own // 2, own // 2) for own in lengths]
    sizes = [first for first, _ in halves] + [second for _, second in reversed(halves)]
    starts = [0, *accumulate(sizes)]
    last = len(sizes) - 1
    return [
        [Chunk(starts[rank], first, 0), Chunk(starts[last - rank], second, first)]
        for rank, (first, second) in enumerate(halves)
    ]


def even_lengths(total: int, ranks: int) -> list[int]:
    """`total` positions shared out as evenly as they go."""
    return [total // ranks + (rank < total % ranks) for rank in range(ranks)]


def shard(tensor: Tensor, *, layout: Layout = "ring", group: Any = None, axis: int = -2) -> Tensor:
    """This rank's positions of a tensor that all ranks have; its gradient stays on this rank."""
    exchange = Exchange(group)
    own = chunks(even_lengths(tensor.shape[axis], exchange.ranks), check_layout(layout))
    runs = [tensor.narrow(axis, run.position, run.length) for run in own[exchange.rank]]
    return runs[0] if len(runs) == 1 else torch.cat(runs, axis)


def unshard(
    tensor: Tensor, *, layout: Layout = "ring", group: Any = None, axis: int = -2
) -> Tensor:
    """The whole that ranks hold shards of, in the order of positions, on every rank; without a
    gradient."""
    exchange = Exchange(group)
    every = exchange.gather(tensor.detach().movedim(axis, 0))
    placed = chunks([len(each) for each in every], check_layout(layout))
    runs = _in_order(every, placed)
    return torch.cat(runs).movedim(0, axis)


def _in_order(every: list[Tensor], placed: list[list[Chunk]]) -> list[Tensor]:
    by_position = {
        run.position: each.narrow(0, run.offset, run.length)
        for each, own in zip(every, placed, strict=True)
        for run in own
        if run.length
    }
    return [by_position[position] for position in sorted(by_position)] or every[:1]


def check_layout(layout: Any) -> Layout:
    if layout not in LAYOUTS:
        raise ValueError(f"layout must be one of {', '.join(LAYOUTS)}; got {layout!r}")
    return layout  # type: ignore[no-any-return]
