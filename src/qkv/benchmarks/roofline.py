"""The factorised additive scores and nothing else: an upper bound on the kernel's speed.

Tokens are packed beforehand; no mask, no softmax, no values.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from qkv.jit import kernel
from qkv.jit.builtins import invoke
from qkv.jit.signature import Real, Real1, Real2, Real3
from qkv.operators.fused.additive import scores, transform
from qkv.operators.fused.inputs import ROWS, WIDTH


@kernel
def _score(
    start: int,
    stop: int,
    scores: int,
    query: Real2,
    key: Real3,
    weight: Real1,
    reach: Real,
    out: Real3,
) -> None:
    """out (tiles, n, WIDTH): the scores of the blocks of queries from `start` to `stop`."""
    for tile in range(key.shape[0]):
        for r in range(start * ROWS, stop * ROWS, ROWS):
            block = query[r : r + ROWS], key[tile], weight, out[tile, r : r + ROWS], ROWS, reach
            invoke(scores, block)


@kernel
def _transform(
    start: int, stop: int, transform: int, plain: Real2, out: Real2, reach: Real1
) -> None:
    """The rows from `start` to `stop` as `additive` packs them, in front of the plain ones."""
    for r in range(start, stop):
        invoke(transform, (plain[r : r + 1], out[r : r + 1], reach[r : r + 1]))


def additive_scores(query: Tensor, key: Tensor, weight: Tensor) -> Callable[[], Tensor]:
    """A function that computes all scores, its rows shared over torch's threads.

    It gives them as (tiles, n, keys of a tile), because putting them in order takes time too.
    """
    (n, _), m = query.shape, len(key)
    packed, reach = zip(*(_packed(tokens) for tokens in (query, key)), strict=True)
    tiles = packed[1].unflatten(0, (m // WIDTH, WIDTH)).mT.contiguous()
    out = torch.empty(m // WIDTH, n, WIDTH)
    address, by = scores.address("float32"), weight.contiguous()

    def run() -> Tensor:
        _score(address, packed[0], tiles, by, sum(reach), out, count=n // ROWS, grain=8)
        return out

    return run


def _packed(tokens: Tensor) -> tuple[Tensor, float]:
    """Tokens (n, 2 d): their exponentials and they themselves; and the largest of them."""
    packed, reach = torch.cat([tokens, tokens], dim=1), torch.empty(len(tokens))
    _transform(transform.address("float32"), tokens, packed, reach, count=len(tokens))
    return packed, reach.max().item()
