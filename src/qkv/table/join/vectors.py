"""Columns of vectors: pairs of rows scored by distance or by product."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from qkv.table import kernels
from qkv.table.comparison import PRODUCTS, log_kernel
from qkv.table.join.candidates import Candidates, groups, spans_of
from qkv.table.join.on import On

#: Numbers that are gathered at once.
_MOST_NUMBERS = 2**22


def compare(
    condition: On, queries: np.ndarray, keys: np.ndarray, before: Candidates
) -> Iterator[Candidates]:
    """The same candidates with their log weights, for some left rows at a time.

    `queries` (n, d) and `keys` (m, d) are the vectors of all rows of both tables.
    """
    if len(queries) and len(keys) and queries.shape[1] != keys.shape[1]:
        raise ValueError(
            f"columns {condition.columns!r} must hold vectors of one length; "
            f"got {queries.shape[1]} on the left and {keys.shape[1]} on the right"
        )
    if condition.name == "cosine":
        queries, keys = _unit(queries), _unit(keys)
    for part in groups(before.counts):
        some = before.some(part)
        whose, places = some.pairs()
        right = some.right[places]
        if len(some.left) and (some.spans == some.spans[0]).all():
            # All meet the same rows: a block, which needs no gathering.
            met = some.right[slice(*some.spans[0])]
            scores = _block(condition, queries[some.left], keys[met]).ravel()
        else:
            scores = np.empty(len(right))
            step = max(1, _MOST_NUMBERS // max(1, keys.shape[1]))
            for start in range(0, len(right), step):
                these = slice(start, start + step)
                scores[these] = _pairs(
                    condition, queries[some.left[whose[these]]], keys[right[these]]
                )
        logs = _logs(condition, scores, keys.shape[1])
        if len(some.logs):
            logs += some.logs[places]
        yield Candidates(some.left, spans_of(some.counts), right, logs)


def _block(condition: On, query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """Products, or squared distances in bandwidths, of all pairs, (n, d) and (m, d) -> (n, m)."""
    if condition.name in PRODUCTS:
        return np.asarray(query @ key.T)
    out = np.empty((len(query), len(key)))
    kernels.squared_distances(
        query, key, 1.0 / condition.bandwidth, out, count=len(key), grain=kernels.TILE
    )
    return out


def _pairs(condition: On, query: np.ndarray, key: np.ndarray) -> np.ndarray:
    """The same of pairs that stand side by side, (p, d) and (p, d) -> (p,)."""
    if condition.name in PRODUCTS:
        return np.asarray(np.einsum("pd,pd->p", query, key))
    return np.asarray(np.square((query - key) / condition.bandwidth).sum(axis=1))


def _logs(condition: On, scores: np.ndarray, d: int) -> np.ndarray:
    """Log weights of products, or of squared distances in bandwidths."""
    if condition.name not in PRODUCTS:
        return log_kernel(condition.name, scores)
    if condition.name == "scaled_dot":
        return scores / math.sqrt(d)
    return scores / condition.temperature if condition.name == "cosine" else scores


def _unit(vectors: np.ndarray) -> np.ndarray:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors / np.where(lengths == 0.0, 1.0, lengths)
