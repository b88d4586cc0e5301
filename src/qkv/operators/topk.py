"""The k best keys of each query: ranked once, then only those k are weighed and differentiated."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from qkv import cost
from qkv.broadcast import query_rows
from qkv.mask import Mask
from qkv.memory import TILE_BYTES, readable
from qkv.normalize import normalize
from qkv.operators.base import Cost, Result
from qkv.operators.tiles import in_tiles, rows_at_once
from qkv.problem import Problem
from qkv.similarity.base import widen
from qkv.tracing import sizes_are_known

#: Bytes that ranking takes for each pair of a tile.
RANKED_BYTES = 32


def refusal(problem: Problem) -> str | None:
    if problem.mask is None or problem.mask.as_topk() is None:
        return "the mask is not the best k keys of each query"
    if problem.similarity.per_head:
        return "similarities with parameters per head are not supported"
    return "there is nothing to compare" if problem.pairs == 0 else None


def _kept(problem: Problem) -> tuple[int, Mask | None]:
    """How many keys are kept for each query, and of which."""
    assert problem.mask is not None
    best = problem.mask.as_topk()
    assert best is not None
    k, rest = best
    if sizes_are_known(problem.m):  # else keys are taken to be as many
        k = min(k, problem.m)
    return k, rest


def estimate(problem: Problem) -> float:
    """Seconds: scores as those of the formula forwards, and ranking in place of sorting."""
    return cost.seconds(problem, "topk", "any") + cost.seconds(problem, "dense") / 3


def offer(problem: Problem) -> Cost:
    """Scores of all pairs, and what is kept of them."""
    k, _ = _kept(problem)
    entries = math.prod(problem.batch) * problem.n
    weighing = entries * k * (problem.similarity.pair_flops(problem.dim) + 2 * problem.dim)
    scoring = problem.pairs * problem.similarity.pair_flops(problem.dim)
    # Tiles of scores, ranked and gathered (27 to 37 MB measured), and places with those sorted.
    size = 7 * TILE_BYTES + entries * k * 16
    if problem.needs_grad:  # what was gathered, and its gradients
        size += 10 * TILE_BYTES
    reason = (
        f"{k} keys of each query are kept; their places take {readable(entries * k * 8)}, "
        "and only they are weighed and differentiated"
    )
    return Cost(scoring + weighing, size, reason)


def answer(problem: Problem) -> Result:
    """Rank all keys, then attend to the best."""
    k, rest = _kept(problem)
    query, key = problem.similarity.prepare(problem.query, problem.key)
    prepared = problem._replace(query=query, key=key)
    with torch.no_grad():
        places = _places(prepared, k, rest)  # (*batch, n, k)
    batch, m = problem.batch, problem.m
    # One long list of keys, so that each query's own k are found by one index.
    flat_key = key.expand(*batch, m, key.shape[-1]).flatten(0, -2)
    flat_value = problem.value.expand(*batch, m, problem.value.shape[-1]).flatten(0, -2)
    query = query.expand(*batch, problem.n, query.shape[-1])
    sliced = [query, places]
    if problem.bias is not None:
        sliced.append(problem.bias.expand(*batch, problem.n, m))

    def tile(start: int, query: Tensor, places: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        *bias, key, value = others
        own = _entry_starts(batch, m, places.device) + places
        kept_key = key[own.flatten()].unflatten(0, own.shape)  # (*batch, rows, k, d)
        kept_value = value[own.flatten()].unflatten(0, own.shape)
        scores = problem.similarity.log_score(query.unsqueeze(-2), kept_key).squeeze(-2)
        if bias:
            scores = scores + bias[0].gather(-1, places).to(scores.dtype)
        if problem.position_bias is not None:
            by_position = problem.position_bias.scores(problem.tile(start, start + query.shape[-2]))
            by_position = by_position.expand(*batch, query.shape[-2], m)
            scores = scores + by_position.gather(-1, places).to(scores.dtype)
        allowed = _allowed(prepared, rest, start, places)
        weights, log_total = normalize(scores, allowed, may_be_empty=True)
        if problem.dropout is not None:
            weights = problem.dropout.apply(weights, start, places.to(torch.int32))
        pooled = (weights.unsqueeze(-2) @ widen(kept_value)).squeeze(-2).to(value.dtype)
        return pooled, log_total.unsqueeze(-1)

    width = k * (key.shape[-1] + problem.value.shape[-1]) * max(4, query.element_size())
    if problem.position_bias is not None:
        width += 4 * m
    rows = rows_at_once(4 * TILE_BYTES, math.prod(batch) * width)
    answers, log_total = in_tiles(tile, sliced, [flat_key, flat_value], rows)
    return answers, log_total.squeeze(-1)


def _places(problem: Problem, k: int, rest: Mask | None) -> Tensor:
    """Where the k best keys of each query are, (*batch, n, k), in tiles of queries."""
    # Beside a pair's own numbers: scores, their sums, places and what is chosen of them.
    width = 4 * problem.similarity.pair_width(problem.dim) + RANKED_BYTES
    row = math.prod(problem.batch) * problem.m * width

    def tile(start: int, query: Tensor) -> tuple[Tensor]:
        stop = start + query.shape[-2]
        scores = problem.similarity.log_score(query, problem.key)
        if problem.bias is not None:
            scores = scores + query_rows(problem.bias, start, stop).to(scores.dtype)
        if problem.position_bias is not None:
            by_position = problem.position_bias.scores(problem.tile(start, stop))
            scores = scores + by_position.to(scores.dtype)
        if rest is not None:
            scores = torch.where(rest.allowed(problem.tile(start, stop)), scores, -torch.inf)
        scores = scores.expand(*problem.batch, stop - start, problem.m)
        return (_best(scores, k),)

    (places,) = in_tiles(tile, [problem.query], [], rows_at_once(4 * TILE_BYTES, row))
    return places


def _best(scores: Tensor, k: int) -> Tensor:
    """Indices of the k largest scores, ascending; of equal scores, those that come first."""
    scores = torch.where(scores.isnan(), torch.inf, scores)  # NaN must show, so it is kept
    last = scores.topk(k, dim=-1).values[..., -1:]
    above, level = scores > last, scores == last
    room = k - above.sum(-1, keepdim=True)
    chosen = above | (level & (level.cumsum(-1, dtype=torch.int32) <= room))  # exactly k a row
    return chosen.to(torch.uint8).topk(k, dim=-1).indices.sort(dim=-1).values


def _allowed(problem: Problem, rest: Mask | None, start: int, places: Tensor) -> Tensor | None:
    if rest is None:
        return None
    rows = places.shape[-2]
    allowed = rest.allowed(problem.tile(start, start + rows))
    return allowed.expand(*problem.batch, rows, problem.m).gather(-1, places)


def _entry_starts(batch: tuple[int, ...], m: int, device: torch.device) -> Tensor:
    """Where the keys of each batch entry begin in the list of all keys, (*batch, 1, 1)."""
    return (torch.arange(math.prod(batch), device=device) * m).reshape(*batch, 1, 1)
