"""The factorised additive scores and nothing else: the speed that the whole kernel cannot pass.

Tokens are packed beforehand; no mask, no softmax, no values.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor

from qkv.operators.fused import threads
from qkv.operators.fused.additive import pack_key, pack_query, scores
from qkv.operators.fused.arithmetic import TILE_OPTIONS
from qkv.operators.fused.space import ROWS, WIDTH, packed_depth


@numba.njit(**TILE_OPTIONS)
def _pack(query: Any, key: Any, packed_query: Any, packed_key: Any) -> Any:
    """Fill (n, depth) and (tiles, depth, WIDTH); how far the exponentials reach."""
    reach = pack_query(query, packed_query)
    furthest = reach
    for tile in range(packed_key.shape[0]):
        own = pack_key(key[tile * WIDTH : (tile + 1) * WIDTH], packed_key[tile])
        furthest = max(furthest, reach + own)
    return furthest


@numba.njit(**TILE_OPTIONS)
def _score(query: Any, key: Any, weight: Any, first: int, last: int, reach: Any, out: Any) -> None:
    """out (tiles, n, WIDTH): the scores of the queries from `first` to `last`."""
    for tile in range(key.shape[0]):
        for r in range(first, last, ROWS):
            scores(query[r : r + ROWS], key[tile], weight, out[tile, r : r + ROWS], ROWS, reach)


def additive_scores(query: Tensor, key: Tensor, weight: Tensor) -> Callable[[], Tensor]:
    """A function that computes all scores, its rows shared over torch's threads.

    It gives them as (tiles, n, keys of a tile), because putting them in order takes time too.
    """
    (n, d), m, count = query.shape, len(key), torch.get_num_threads()
    packed_query = np.empty((n, packed_depth("additive", d)), np.float32)
    packed_key = np.empty((m // WIDTH, packed_depth("additive", d), WIDTH), np.float32)
    reach = _pack(query.numpy(), key.numpy(), packed_query, packed_key)
    out = torch.empty(m // WIDTH, n, WIDTH)
    bounds = list(pairwise(n * part // count for part in range(count + 1)))

    def run() -> Tensor:
        shares = iter(bounds)

        def task() -> None:
            for first, last in shares:
                _score(packed_query, packed_key, weight.numpy(), first, last, reach, out.numpy())

        threads.run(task, count)
        return out

    return run
