"""The same attention in plain, dense torch: what the kernels compute, fit to be differentiated.

It serves second derivatives, and builds the block (queries, keys) of the queries it is given.
"""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.dropout import Dropout
from qkv.normalize import normalize
from qkv.operators.fused.additive_scores import additive_scores
from qkv.operators.fused.launch import Call
from qkv.operators.fused.registry import program_of_kind
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
