"""Queries in blocks, each with the run of keys that it meets, as the kernel takes them together."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

#: Queries in a block: fewer waste fewer keys at the edges, more make larger products.
BLOCK = 256
#: Blocks that go through the kernel at once; on the way back each holds its own keys' gradients.
MOST_BLOCKS = 16


class Group(NamedTuple):
    """Neighbouring blocks of queries whose runs look alike, each moved along by its rows.

    They go through the kernel together, their keys a view in which the blocks overlap.
    """

    first: int  # the first query
    rows: int  # queries in a block
    blocks: int
    low: int  # the first key of the first block
    width: int  # keys that a block meets
    mask: Tensor | None  # until the next group is asked for, whose mask takes its place
    empty: Tensor | None  # queries that see nothing

    def of_queries(self, x: Tensor) -> Tensor:
        """(h, n, d) -> (h, blocks, rows, d)."""
        mine = x[:, self.first : self.first + self.rows * self.blocks]
        return mine.view(len(x), self.blocks, self.rows, x.shape[-1])

    def of_keys(self, x: Tensor) -> Tensor:
        """(h, m, d) -> (h, blocks, width, d)."""
        last = self.low + self.width + self.rows * (self.blocks - 1)
        overlapping: Tensor = x[:, self.low : last].unfold(1, self.width, self.rows)
        return overlapping.mT


def groups(
    m: int, start: Tensor, stop: Tensor, line: Tensor | None, like: Tensor
) -> Iterator[tuple[int, Group]]:
    """The groups of every batch entry, in ascending order for each."""
    start, stop = start.clamp(0, m), stop.clamp(0, m)
    entries = like.shape[0]
    if len(start) == 1 and line is None:
        # A mask serves all entries and is then let go: those of all groups are as large as a dense
        # one where runs grow, as under Causal.
        for group in _groups_of(start[0], stop[0], None, _room(m, start, like.dtype)):
            for entry in range(entries):
                yield entry, group
        return
    start, stop = start.expand(entries, -1, -1), stop.expand(entries, -1, -1)
    lines = None if line is None else line.expand(entries, -1, -1)
    room = _room(m, start, like.dtype)
    for entry in range(entries):
        own = None if lines is None else lines[entry]
        for group in _groups_of(start[entry], stop[entry], own, room):
            yield entry, group


def _room(m: int, start: Tensor, dtype: torch.dtype) -> Tensor:
    """Memory for one mask after the other: each is larger than the one before it where runs grow,
    so that none would fit where that was."""
    return torch.empty(start.shape[1] * BLOCK * m, dtype=dtype, device=start.device)


class Segment(NamedTuple):
    """Neighbouring queries that see keys which no others see."""

    first: int  # the first query
    rows: int
    low: int  # the first key that any of them sees
    high: int  # and the one behind the last
    whole: bool  # whether each of them sees all of these keys


def _groups_of(start: Tensor, stop: Tensor, line: Tensor | None, room: Tensor) -> Iterator[Group]:
    """Groups of blocks from the runs (h, n) of one batch entry."""
    segments = _segments(start, stop)
    index = 0
    while index < len(segments):
        segment, count = segments[index], 1
        first, rows = segment.first, segment.rows
        if rows > BLOCK:
            yield from _groups_between(start, stop, line, first, first + rows, room)
        else:  # sentences of one length that follow each other go through the kernel together
            while count < min(MOST_BLOCKS, len(segments) - index) and _moved_along(
                start, stop, *segments[index + count - 1 : index + count + 1]
            ):
                count += 1
            if segment.whole and line is None:
                yield Group(first, rows, count, segment.low, segment.high - segment.low, None, None)
            else:
                yield from _group(start, stop, line, first, rows, count, room)
        index += count


def _segments(start: Tensor, stop: Tensor) -> list[Segment]:
    """The queries, cut apart wherever no key is seen on both sides."""
    earliest, latest = start.amin(0), stop.amax(0)
    seen = latest.cummax(0).values[:-1]  # by the queries so far
    cuts = (earliest[1:] >= seen).nonzero().flatten() + 1
    edges = np.array([0, *cuts.tolist()])

    def over_segments(reduce: np.ufunc, x: Tensor) -> npt.NDArray[np.int64]:
        return reduce.reduceat(x.numpy(), edges)

    low, high = over_segments(np.minimum, earliest), over_segments(np.maximum, latest)
    whole = (over_segments(np.maximum, start.amax(0)) == low) & (low < high)
    whole &= over_segments(np.minimum, stop.amin(0)) == high
    rows = np.diff(edges, append=start.shape[-1])
    columns = (x.tolist() for x in (edges, rows, low, high, whole))
    return [Segment(*each) for each in zip(*columns, strict=True)]


def _moved_along(start: Tensor, stop: Tensor, before: Segment, here: Segment) -> bool:
    """Whether the runs of a segment are those of the one before, moved along by its rows."""
    rows = here.rows
    if before.rows != rows or here.low != before.low + rows or here.high != before.high + rows:
        return False
    if before.whole and here.whole:
        return True
    own, other = (slice(each.first, each.first + rows) for each in (here, before))
    return all(torch.equal(x[:, own], x[:, other] + rows) for x in (start, stop))


def _groups_between(
    start: Tensor, stop: Tensor, line: Tensor | None, first: int, last: int, room: Tensor
) -> Iterator[Group]:
    """Groups of blocks for the queries `first` to `last`."""
    lows, highs, steady = _block_bounds(start[:, first:last], stop[:, first:last])
    block = 0
    while block < len(lows):
        count = 1
        while count < MOST_BLOCKS and block + count < len(lows) and steady[block + count]:
            count += 1
        if lows[block] < highs[block]:
            here = first + block * BLOCK
            yield from _group(start, stop, line, here, min(BLOCK, last - here), count, room)
        block += count


def _group(
    start: Tensor,
    stop: Tensor,
    line: Tensor | None,
    first: int,
    rows: int,
    count: int,
    room: Tensor,
) -> Iterator[Group]:
    """One group, or none where its queries see nothing."""
    own = slice(first, first + rows)
    low, high = int(start[:, own].min()), int(stop[:, own].max())
    if low >= high:
        return
    bias = None
    if line is not None:  # that of the first block: others are moved along with their keys
        least = start.shape[-1] - own.stop + low
        bias = line[:, least : least + rows + high - low - 1]
        bias = bias.unfold(-1, high - low, 1).flip(-2).unsqueeze(1)
    mask, empty = _kernel_mask(start[:, own] - low, stop[:, own] - low, high - low, bias, room)
    yield Group(first, rows, count, low, high - low, mask, empty)


def _block_bounds(start: Tensor, stop: Tensor) -> tuple[list[int], list[int], list[bool]]:
    """Of each block: its first key, its last key, and whether it is its neighbour moved along."""
    h, n = start.shape
    missing = -n % BLOCK
    # The last block may be short; it is filled up with its last run, and stands alone.
    starts, stops = (
        torch.cat([x, x[:, -1:].expand(h, missing)], dim=-1).reshape(h, -1, BLOCK)
        for x in (start, stop)
    )  # (h, blocks, BLOCK)
    lows, highs = starts.amin(dim=(0, 2)), stops.amax(dim=(0, 2))
    moved = torch.zeros_like(lows, dtype=torch.bool)
    moved[1:] = (starts[:, 1:] - starts[:, :-1] == BLOCK).all(2).all(0) & (
        stops[:, 1:] - stops[:, :-1] == BLOCK
    ).all(2).all(0)
    if missing:
        moved[-1] = False
    return lows.tolist(), highs.tolist(), moved.tolist()


def _kernel_mask(
    start: Tensor, stop: Tensor, width: int, bias: Tensor | None, room: Tensor
) -> tuple[Tensor | None, Tensor | None]:
    """The kernel's mask (h, 1, rows, width) and the empty rows (h, 1, rows), if there are any."""
    keys = torch.arange(width, device=start.device)
    start, stop = start.unsqueeze(1), stop.unsqueeze(1)
    hidden = (keys < start.unsqueeze(-1)) | (keys >= stop.unsqueeze(-1))
    if not bool(hidden.any()):
        return bias, None
    empty = stop <= start
    if bias is None:
        mask = room[: hidden.numel()].view(hidden.shape).zero_().masked_fill_(hidden, -torch.inf)
    else:
        mask = torch.where(hidden, -torch.inf, bias)
    return mask, empty if bool(empty.any()) else None
