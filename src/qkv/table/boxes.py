"""Rows ordered so that neighbours have similar keys, and bounding boxes of blocks of them.

One key column is sorted. Several are halved in turn, along whichever of them spreads most, as in a
k-d tree whose leaves are blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from qkv.table.columns import Kind, kind_of, plain
from qkv.table.comparison import Comparison

#: Rows in a block.
BLOCK = 4096
#: The share of all weight that blocks may have that are left out: 2⁻⁸ of a sum's last digit.
LOST = 2.0**-60
#: Pairs of a query and a block that are judged; beyond, all blocks are read.
_MOST_PAIRS = 2**23


class Boxes(NamedTuple):
    """The least and the greatest entry of each key column in each block, as the column has them."""

    low: dict[str, pa.Array]
    high: dict[str, pa.Array]
    rows: int

    def chosen(self, comparisons: Sequence[Comparison], n: int, nearest_counts: bool) -> np.ndarray:
        """Whether a block has rows with any weight, for any of n queries.

        Where the nearest row surely counts, blocks that are negligible beside it are left out.
        """
        blocks = -(-self.rows // BLOCK)
        if not comparisons or n * blocks > _MOST_PAIRS:
            return np.ones(blocks, bool)
        most, least = np.zeros((2, 1, blocks))
        for comparison in comparisons:
            above, below = comparison.bounds(
                self.low[comparison.column], self.high[comparison.column]
            )
            most, least = most + above, least + below
        is_needed = most > -np.inf
        if nearest_counts:
            is_needed &= most >= _enough(least, self.rows)
        return np.asarray(is_needed.any(axis=0))


def _enough(least: np.ndarray, rows: int) -> np.ndarray:
    """What a block's rows may weigh at most, in logarithms, to be left out, (n, 1).

    All that are left out weigh less than LOST of what the blocks weigh together at least.
    """
    peak = least.max(axis=1, initial=-np.inf, keepdims=True)
    shares = np.exp(least - np.where(np.isfinite(peak), peak, 0.0))
    sizes = np.minimum(rows - BLOCK * np.arange(least.shape[1]), BLOCK)
    with np.errstate(divide="ignore"):
        together = np.log(shares @ sizes)[:, None]
    return np.asarray(peak + together - math.log(max(rows, 1)) + math.log(LOST))


def boxes_of(keys: dict[str, pa.Array]) -> Boxes:
    """Boxes around blocks of rows in their order."""
    rows = len(next(iter(keys.values())))
    starts = np.arange(0, rows, BLOCK)
    low: dict[str, pa.Array] = {}
    high: dict[str, pa.Array] = {}
    for name, column in keys.items():
        ranks, entries = _ranked(plain(column))
        for side, reduce in ((low, np.minimum), (high, np.maximum)):
            ends = reduce.reduceat(ranks, starts) if rows else ranks[:0]
            side[name] = _entries(ends, entries)
    return Boxes(low, high, rows)


def order_of(keys: dict[str, pa.Array]) -> np.ndarray:
    """Which row comes when."""
    columns = [_ranked(plain(column))[0] for column in keys.values()]
    if len(columns) == 1:
        return np.argsort(columns[0], kind="stable")
    points = np.stack([column.astype(np.float64) for column in columns])
    extent = np.maximum(points.max(axis=1, initial=-np.inf) - points.min(axis=1, initial=np.inf), 0)
    scaled = points / np.where(extent > 0.0, extent, 1.0)[:, None]
    order = np.arange(points.shape[1])
    parts = [(0, len(order))]
    while parts:
        start, stop = parts.pop()
        if stop - start <= BLOCK:
            order[start:stop].sort()
            continue
        part = order[start:stop]
        here = scaled[:, part]
        widest = int(np.argmax(here.max(axis=1) - here.min(axis=1)))
        middle = -(-(stop - start) // (2 * BLOCK)) * BLOCK  # leaves are whole blocks
        order[start:stop] = part[np.argpartition(here[widest], middle)]
        parts += [(start, start + middle), (start + middle, stop)]
    return order


def _ranked(column: pa.Array) -> tuple[np.ndarray, pa.Array]:
    """Numbers in the order of the entries: their own, or places among the distinct ones.

    And the type that numbers of its own have, as an empty array, or the distinct entries.
    """
    type = column.type
    kind = kind_of(type)
    if kind is Kind.NUMBER and not pa.types.is_decimal(type):
        return column.to_numpy(zero_copy_only=False), pa.array([], type)
    if kind is Kind.TIME:
        ticks = column.view(pa.int32() if type.bit_width == 32 else pa.int64())
        return ticks.to_numpy(zero_copy_only=False), pa.array([], type)
    encoded = column.dictionary_encode()
    order = pc.sort_indices(encoded.dictionary)
    rank = np.empty(len(order), np.int64)
    rank[order.to_numpy()] = np.arange(len(order))
    return rank[encoded.indices.to_numpy()], encoded.dictionary.take(order)


def _entries(numbers: np.ndarray, entries: pa.Array) -> pa.Array:
    """The entries that stand behind such numbers."""
    if not len(numbers):
        return entries
    if len(entries):
        return entries.take(pa.array(numbers))
    return pa.array(numbers).view(entries.type)
