"""The sums of one value column so far in a pass."""

from __future__ import annotations

import numpy as np

from qkv.table.block import BlockSums
from qkv.table.partial import TablePartial
from qkv.table.top_rows import TopRows


class Sums:
    """Sums and leading rows for each group and query: row `group · n + query` of both."""

    def __init__(self, column: str, n: int, top: int) -> None:
        self.column = column
        self.n = n
        self.used = 0  # rows, with nothing missing
        self.missing = 0  # rows that lack it
        self.partial = TablePartial.nothing(0, 1)
        self.leaders = TopRows(0, top)

    def add(self, block: BlockSums, groups: np.ndarray) -> None:
        """Add the sums of a block, which has rows for these groups."""
        if len(self.partial.peak) == 0:  # how long values are is known by now
            self.partial = TablePartial.nothing(0, block.partial.mean.shape[1])
            if len(groups) == groups.max() + 1:
                self.partial = block.partial
                self.leaders.logs, self.leaders.rows = block.lead_logs, block.lead_rows
                return
        more = (int(groups.max()) + 1) * self.n - len(self.partial.peak)
        if more > 0:
            nothing = TablePartial.nothing(more, self.partial.mean.shape[1])
            self.partial = self.partial.joined(nothing)
            self.leaders.extend(more)
        places = (groups[:, None] * self.n + np.arange(self.n)).ravel()
        self.partial.merge_at(places, block.partial)
        if self.leaders.logs.shape[1]:
            self.leaders.merge_at(places, block.lead_logs, block.lead_rows)

    def merge(self, other: Sums, groups: np.ndarray, first: int) -> None:
        """Merge another pass: its groups are these here, its rows count from `first`."""
        self.used += other.used
        self.missing += other.missing
        if len(other.partial.peak):
            leaders = self.leaders.takes_over(other.leaders, first)
            self.add(
                BlockSums(other.partial, *leaders), groups[: len(other.partial.peak) // self.n]
            )

    def shrink(self, by: float) -> None:
        """Make all weights so far smaller, by a factor of e to this."""
        self.partial.peak -= by
        self.leaders.logs -= by
