"""Adaptive bandwidths: each query's reaches as far as its k nearest keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.spatial import KDTree

from qkv.memory import TILE_BYTES
from qkv.regression.training_data import Array, Places, TrainingData, Width


@dataclass(frozen=True)
class Nearest:
    """A bandwidth for each query: the distance to the first key beyond its `k` nearest.

    Distances are measured in standard deviations of each column.
    """

    k: int

    def __post_init__(self) -> None:
        if not (isinstance(self.k, (int, np.integer)) and self.k >= 1):
            raise ValueError(f"k must be a whole number of at least 1; got {self.k!r}")


def widths(
    examples: TrainingData, width: Width, query: Array, self_index: Places | None = None
) -> Array:
    """The bandwidth of each query, (n,), in units of `width.bandwidth`.

    `self_index` (n,) is the key that each query itself is: it does not count as a neighbour.
    """
    assert width.neighbors is not None
    key, copies = examples.keys.number / width.bandwidth, examples.copies
    # A row of several copies is as many neighbours.
    itself = np.zeros(len(query)) if self_index is None else np.minimum(copies[self_index], 1.0)
    needed = width.neighbors + 1 + itself
    candidates = len(key) if copies.min() < 1 else min(width.neighbors + 2, len(key))
    tree, distances = KDTree(key), np.empty(len(query))
    step = max(1, TILE_BYTES // (8 * candidates))
    for start in range(0, len(query), step):
        rows = slice(start, start + step)
        distance, place = tree.query(query[rows] / width.bandwidth, k=range(1, candidates + 1))
        reached = np.cumsum(copies[place], axis=1) >= needed[rows, None] * (1 - 1e-12)
        distances[rows] = np.take_along_axis(distance, reached.argmax(axis=1)[:, None], axis=1)[
            :, 0
        ]
        # There is no key beyond all keys.
        distances[rows] = np.where(reached[:, -1], distances[rows], distance[:, -1] * 1.001)
    # Keys at exactly that distance are outside, whatever rounding does to it.
    distances *= 1 - 1e-9
    # Where all neighbours are duplicates of the query, they alone count.
    smallest = np.finfo(np.float64).tiny ** 0.25
    return np.maximum(distances, smallest)


def with_widths(
    examples: TrainingData, width: Width, query: Array, self_index: Places | None = None
) -> Array:
    """Queries as :class:`~qkv.similarity.adaptive.Adaptive` takes them."""
    return np.column_stack([query, widths(examples, width, query, self_index)])
