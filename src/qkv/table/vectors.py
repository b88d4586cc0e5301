"""Comparisons of vectors: by distance or by product."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable

import numpy as np
import pyarrow as pa

from qkv.table import kernels, tile_scores
from qkv.table.columns import plain, vectors
from qkv.table.comparison import KERNELS, Comparison, log_kernel


def key_vectors(keys: pa.Array, column: str, d: int) -> np.ndarray:
    """Vectors (m, d), checked to be as long as those of the queries."""
    key = vectors(plain(keys), column)
    if key.shape[1] != d and len(key):
        raise ValueError(
            f"query for key column {column!r} must be a vector of {key.shape[1]} numbers; got {d}"
        )
    return key


class Vectors(Comparison):
    """Vectors, by distance or by product."""

    def __init__(
        self, column: str, entries: pa.Array, name: str, bandwidth: float, temperature: float
    ) -> None:
        super().__init__(column, name + (f", bandwidth {bandwidth:g}" if name in KERNELS else ""))
        self.query = vectors(entries, column)  # (n, d)
        self._name = name
        self._score: Callable[[np.ndarray], np.ndarray] = {
            "dot": lambda key: self.query @ key.T,
            "scaled_dot": lambda key: self.query @ key.T / math.sqrt(key.shape[1]),
            "cosine": lambda key: _unit(self.query) @ _unit(key).T / temperature,
        }.get(name) or (lambda key: self._kernel(key, min(1.0 / bandwidth, sys.float_info.max)))

    def logs(self, keys: pa.Array) -> np.ndarray:
        return self._score(key_vectors(keys, self.column, self.query.shape[1]))

    def _kernel(self, key: np.ndarray, inverse: float) -> np.ndarray:
        squared = np.empty((len(self.query), len(key)))
        kernels.squared_distances(
            self.query, key, inverse, squared, count=len(key), grain=kernels.TILE
        )
        logs = log_kernel(self._name, squared)
        if self._name in ("gaussian", "euclidean", "laplacian"):
            for place in np.flatnonzero((squared > -tile_scores.FARTHEST).all(axis=1)):
                logs[place] = _far(self.query[place], key, inverse)
        return logs


def _far(query: np.ndarray, key: np.ndarray, inverse: float) -> np.ndarray:
    """Logs of vectors so far away that squares overflow: by distance alone, as kernels have it."""
    half = query / 2 - key / 2
    most = np.abs(half).max(axis=1, keepdims=True)
    squared = ((half / most) ** 2).sum(axis=1)
    rank = np.log(squared) + 2 * (np.log(most[:, 0]) + math.log(2) + math.log(inverse))
    return tile_scores.FARTHEST * 10 * (1.0 + 1e-4 * rank)  # type: ignore[no-any-return]


def _unit(vectors: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths == 0.0, 1.0, lengths)
