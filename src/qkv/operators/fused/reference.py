"""The same attention in plain, dense torch: what the kernels compute, fit to be differentiated.

It serves second derivatives, and gradients where scores are so large that the kernels cannot make
weights of them a second time. It builds the block (queries, keys) of the queries it is given.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.dropout import Dropout
from qkv.memory import TILE_BYTES
from qkv.normalize import normalize
from qkv.operators.fused.additive_scores import additive_scores
from qkv.operators.fused.launch import BIAS, Call
from qkv.operators.fused.registry import program_of_kind
from qkv.operators.tiles import TileFunction, in_tiles, rows_at_once
from qkv.similarity.base import log_or_never
from qkv.tracing import is_eager


def log_scores(kind: str, query: Tensor, key: Tensor, parameter: Tensor) -> Tensor:
    """The logarithm of the unnormalised weight of each pair, (…, n, m)."""
    program = program_of_kind(kind)
    if program is None:
        assert kind == "additive"
        if is_eager(query, key, parameter):
            return additive_scores(query, key, parameter)
        return torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3)) @ parameter
    scores = program.scores(query, key, parameter)
    return log_or_never(scores) if program.proportional else scores


def rows_of(call: Call, start: int, stop: int) -> Call:
    """The same call for the queries `start` to `stop` alone."""

    def part(tensor: Tensor | None, axis: int) -> Tensor | None:
        if tensor is None or tensor.ndim < -axis or tensor.shape[axis] == 1:
            return tensor
        return tensor.narrow(axis, start, stop - start)

    return call._replace(
        query=call.query.narrow(-2, start, stop - start),
        bias=part(call.bias, -2),
        start=part(call.start, -1),
        stop=part(call.stop, -1),
        mask=part(call.mask, -2),
        row_key=part(call.row_key, -1),
    )


def attend(call: Call) -> tuple[Tensor, Tensor]:
    """Answer and log_total, by the formula."""
    query, key, value, parameter, bias, start, stop, mask, row_key, kind, rate = call
    scores = log_scores(kind, query, key, parameter)
    allowed = torch.ones(scores.shape[-1], dtype=torch.bool, device=scores.device)
    if start is not None and stop is not None:
        keys = torch.arange(scores.shape[-1], device=scores.device)
        allowed = allowed & (keys >= start.unsqueeze(-1)) & (keys < stop.unsqueeze(-1))
    if mask is not None:
        allowed = allowed & mask
    if bias is not None:
        allowed = allowed & (bias != -torch.inf)
        scores = scores + torch.where(bias == -torch.inf, 0.0, bias)
    weights, log_total = normalize(scores, allowed, may_be_empty=True)
    if row_key is not None:
        weights = Dropout(rate, row_key).apply(weights, start=0)
    return weights @ value, log_total


class Tiles(NamedTuple):
    """A call as a function of tiles of its queries: (first query, *rows, *whole) -> answer (…, d_v)
    and log_total (…, 1)."""

    function: TileFunction
    rows: list[Tensor]  # of which a tile takes some: the query, and a bias with a row for each
    whole: list[Tensor]  # key, value and parameter, and a bias that all queries share
    row_bytes: int  # that the block of one query takes


def tiles(call: Call) -> Tiles:
    """The same call, a tile of queries at a time."""
    bias = call.bias
    in_rows = bias is not None and bias.shape[-2] == call.query.shape[-2]

    def function(start: int, query: Tensor, *others: Tensor) -> tuple[Tensor, Tensor]:
        rest: list[Any] = list(others)
        added = None if bias is None else rest.pop(0 if in_rows else -1)
        part = rows_of(call, start, start + query.shape[-2])
        answer, log_total = attend(Call._make((query, *rest, added, *part[BIAS + 1 :])))
        return answer, log_total.expand(answer.shape[:-1]).unsqueeze(-1)  # values may be of more

    rows, whole = [call.query], [call.key, call.value, call.parameter]
    if bias is not None:
        (rows if in_rows else whole).append(bias)
    batch = torch.broadcast_shapes(*(x.shape[:-2] for x in call[:3])).numel()
    row_bytes = call.query.element_size() * batch * call.key.shape[-2] * call.key.shape[-1]
    return Tiles(function, rows, whole, row_bytes)


def gradients(call: Call, grad_answer: Tensor, grad_log_total: Tensor) -> list[Tensor]:
    """Those of query, key, value, parameter and, if there is one, bias."""

    def pull() -> tuple[Tensor, ...]:
        given = (call.query, call.key, call.value, call.parameter, call.bias)
        leaves = [x.detach().requires_grad_() for x in given if x is not None]
        tiled = tiles(Call._make((*leaves, *call[len(leaves) :])))
        step = rows_at_once(TILE_BYTES, tiled.row_bytes)
        answer, log_total = in_tiles(tiled.function, tiled.rows, tiled.whole, step)
        upstream = [grad_answer, grad_log_total.unsqueeze(-1)]
        return torch.autograd.grad([answer, log_total], leaves, upstream, materialize_grads=True)

    # Within an operator autograd records nothing; what it leaves out is told to each thread.
    with ThreadPoolExecutor(1) as thread:
        return list(thread.submit(pull).result())
