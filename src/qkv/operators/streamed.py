"""Any similarity in linear memory: tiles of queries, computed again on the way back.

A tile holds whole rows, so each is the reference operator on a few queries. One row of scores,
with its hidden axis, is no larger than the keys themselves, so memory stays linear.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qkv import cost
from qkv.memory import TILE_BYTES, readable
from qkv.operators.base import Cost, Result
from qkv.operators.dense import bytes_held, bytes_needed, pool, seconds
from qkv.operators.tiles import TileFunction, in_tiles, rows_at_once, spans
from qkv.problem import Problem

#: What a tile and its gradients hold at once, in tensors of a tile's size: 44 to 110 MB were
#: measured with tiles of 4.2 MB, for similarities of all kinds.
TENSORS_IN_A_TILE = 20


def refusal(problem: Problem) -> None:
    """Nothing is refused."""


def estimate(problem: Problem) -> float:
    """Seconds: those of the formula, forwards once more on the way back, and of many calls."""
    tiles = bytes_needed(problem) / TILE_BYTES
    # Forwards again on the way back, and sums of gradients: 0.8 to 1.7 times 1.5 was measured for
    # three similarities at 1,024 to 4,096 tokens (AMD EPYC with AVX-512).
    again = 2.2 if problem.needs_grad else 1.0
    # A block of features of pairs is better off in tiles; our own similarities build none.
    reused = problem.similarity.family == "any"
    return again * seconds(problem, reused=reused) + tiles * cost.seconds(problem, "tile", "any")


def offer(problem: Problem) -> Cost:
    """All pairs, and the memory of some tiles."""
    one_row = bytes_needed(problem) // max(1, problem.n)
    size = int(min(bytes_held(problem), max(_tiles_held(problem) * TILE_BYTES, one_row)))
    reason = f"tiling keeps memory at {readable(size)}, whatever the number of queries"
    return Cost(problem.flops, size, reason)


def _tiles_held(problem: Problem) -> float:
    """Tensors as large as a tile that are held at the worst moment; counted by measuring."""
    width = problem.similarity.pair_width(problem.dim)
    if problem.needs_grad:
        return TENSORS_IN_A_TILE if width <= 2 else 12.0
    lean = problem.similarity.family == "dot" or width > 1
    tiles = 3.0 if lean else 7.0
    if problem.mask is not None or problem.adds_to_scores or problem.dropout is not None:
        tiles += 5.0 / width
    return tiles


def answer(problem: Problem) -> Result:
    """The answer of the reference operator, tile by tile."""
    query, key = problem.similarity.prepare(problem.query, problem.key)
    itemsize = max(4, problem.query.element_size())
    width = max(1, problem.similarity.pair_width(problem.dim))
    pairs = max(1, TILE_BYTES // (itemsize * width))
    return _split_batch(problem._replace(query=query, key=key), pairs)


def _split_batch(problem: Problem, pairs: int) -> Result:
    """Split leading axes until one row of every batch entry fits into a tile of `pairs`."""
    entries = math.prod(problem.batch)
    if torch.compiler.is_compiling() or entries <= 1 or entries * problem.m <= pairs:
        return _split_queries(problem, rows_at_once(pairs, entries * problem.m))
    axis = next(axis for axis, size in enumerate(problem.batch) if size > 1)
    size = problem.batch[axis]
    step = max(1, size * pairs // (entries * problem.m))
    parts = [_split_batch(problem.narrow(axis, *span), pairs) for span in spans(size, step)]
    answers, log_totals = zip(*parts, strict=True)
    total = torch.cat(log_totals, dim=axis) if problem.wants_total else None
    return torch.cat(answers, dim=axis), total


def _split_queries(problem: Problem, rows: int) -> Result:
    def tile(
        start: int, query: Tensor, key: Tensor, value: Tensor, bias: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        log_scores = problem.similarity.log_score(query, key)
        answer, log_total = pool(problem, log_scores, value, bias, start)
        return (answer,) if log_total is None else (answer, log_total.unsqueeze(-1))

    if problem.bias is None:
        sliced, whole = [problem.query], [problem.key, problem.value]
        function: TileFunction = tile
    elif problem.bias.shape[-2] == 1:
        sliced, whole = [problem.query], [problem.key, problem.value, problem.bias]
        function = tile
    else:
        sliced, whole = [problem.query, problem.bias], [problem.key, problem.value]

        def function(
            start: int, query: Tensor, bias: Tensor, key: Tensor, value: Tensor
        ) -> tuple[Tensor, ...]:
            return tile(start, query, key, value, bias)

    answer, *log_total = in_tiles(function, sliced, whole, rows)
    return answer, log_total[0].squeeze(-1) if log_total else None
