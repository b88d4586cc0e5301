"""Adaptive widths: each query looks as far as its k nearest keys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from scipy.spatial import KDTree
from torch import Tensor

from qkv.regression.examples import Array, Examples, Width
from qkv.similarity import Kernel
from qkv.similarity.kernel import squared_distance


@dataclass(frozen=True)
class Nearest:
    """A bandwidth for each query: the distance to the first key beyond its `k` nearest.

    Distances are measured in standard deviations of each column.
    """

    k: int

    def __post_init__(self) -> None:
        if not (isinstance(self.k, (int, np.integer)) and self.k >= 1):
            raise ValueError(f"k must be a whole number of at least 1; got {self.k!r}")


class Adaptive(Kernel):
    """A kernel whose queries bring their own width, in an additional last column."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__()
        self.kernel = kernel
        self.may_vanish = kernel.may_vanish  # type: ignore[misc]

    def check(self, query: Tensor, key: Tensor) -> None:
        self.kernel.check(query[..., :-1], key)

    def _squared(self, query: Tensor, key: Tensor) -> Tensor:
        unit = self.kernel.bandwidth(key)
        return squared_distance(query[..., :-1], key, unit) / query[..., -1:].square()

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return self.kernel.profile(self._squared(query, key))

    def log_score(self, query: Tensor, key: Tensor) -> Tensor:
        return self.kernel.log_profile(self._squared(query, key))


def widths(examples: Examples, width: Width, query: Array, themselves: bool = False) -> Array:
    """How far each query must look, (n,), in units of `width.bandwidth`.

    `themselves` says that the queries are the keys, none of which counts as its own neighbour.
    """
    assert width.neighbors is not None
    key = examples.keys.number / width.bandwidth
    wanted = min(width.neighbors + 1 + themselves, len(key))
    distance, _ = KDTree(key).query(query / width.bandwidth, k=[wanted])
    found = np.asarray(distance, dtype=np.float64)[:, 0]
    if wanted < width.neighbors + 1 + themselves:  # there is no key beyond all keys
        found = found * 1.001
    # Duplicates all around: look at them alone.
    smallest = np.finfo(np.float64).tiny ** 0.25
    return np.maximum(found, smallest)


def with_widths(
    examples: Examples, width: Width, query: Array, themselves: bool = False
) -> torch.Tensor:
    """Queries as :class:`Adaptive` takes them."""
    own = widths(examples, width, query, themselves)
    return torch.from_numpy(np.column_stack([query, own]))
