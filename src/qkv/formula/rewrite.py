"""Formulas that a kernel written by hand computes faster.

A weighted sum of tanh(q + k), or of sigmoid(q + k) = (1 + tanh((q + k) / 2)) / 2, takes one
exponential per token where its terms are factorised: e^(2(q + k)) = e^2q e^2k. The fused kind
"additive" does so.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.formula.program import Node
from qkv.formula.record import Drawn


class Additive(NamedTuple):
    """scale · (Σ weight · f(queries + keys + shifts)) + offset, in slots of the program."""

    queries: tuple[int, ...]
    keys: tuple[int, ...]
    shifts: tuple[int, ...]  # parameters that are added to queries and keys
    weights: tuple[int, ...]  # factors along the features
    scales: tuple[int, ...]  # numbers that the sum is multiplied by
    offsets: tuple[int, ...]  # numbers that are added to it
    sign: float
    is_sigmoid: bool


def additive(drawn: Drawn) -> Additive | None:
    """The program as a sum of tanh or sigmoid, if it is one."""
    offsets: list[int] = []
    scales: list[int] = []
    sign, node = 1.0, drawn.root

    def parameter(each: Node) -> int | None:
        if each.op != "input" or drawn.slots[int(each.detail or 0)].kind != "parameter":
            return None
        return int(each.detail or 0)

    while node.op in ("add", "mul", "neg"):
        if node.op == "neg":
            sign, node = -sign, node.args[0]
            continue
        places = [parameter(arg) for arg in node.args]
        if (places[0] is None) == (places[1] is None):
            return None
        place = places[0] if places[1] is None else places[1]
        assert place is not None
        if node.op == "add" and (scales or sign < 0):
            return None  # an offset that is scaled; rare
        (offsets if node.op == "add" else scales).append(place)
        node = node.args[0 if places[0] is None else 1]
    if node.op != "sum":
        return None
    weights: list[int] = []
    body = node.args[0]
    while body.op in ("mul", "neg"):
        if body.op == "neg":
            sign, body = -sign, body.args[0]
            continue
        places = [parameter(arg) for arg in body.args]
        if (places[0] is None) == (places[1] is None):
            return None
        place = places[0] if places[1] is None else places[1]
        assert place is not None
        weights.append(place)
        body = body.args[0 if places[0] is None else 1]
    if body.op not in ("tanh", "sigmoid"):
        return None
    parts: dict[str, list[int]] = {"query": [], "key": [], "parameter": []}
    pending = [body.args[0]]
    while pending:
        each = pending.pop()
        if each.op == "add":
            pending += each.args
        elif each.op == "input":
            parts[drawn.slots[int(each.detail or 0)].kind].append(int(each.detail or 0))
        else:
            return None
    if not parts["query"] or not parts["key"]:
        return None
    return Additive(
        queries=tuple(parts["query"]),
        keys=tuple(parts["key"]),
        shifts=tuple(parts["parameter"]),
        weights=tuple(weights),
        scales=tuple(scales),
        offsets=tuple(offsets),
        sign=sign,
        is_sigmoid=body.op == "sigmoid",
    )


def factorised(
    pattern: Additive, columns: dict[int, Tensor], entries: dict[int, Any], size: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and weights of the kind "additive"; `entries` are parameters or numbers."""
    query, key = (sum((columns[i] for i in each[1:]), columns[each[0]]) for each in pattern[:2])
    for i in pattern.shifts:
        query = query + entries[i]
    weight: Any = pattern.sign
    for i in (*pattern.weights, *pattern.scales):
        weight = weight * entries[i]
    weight = torch.as_tensor(weight, dtype=query.dtype).expand(size)
    offset: Any = sum(entries[i] for i in pattern.offsets)
    query, key = (x.expand(*x.shape[:-1], size) for x in (query, key))
    if pattern.is_sigmoid:
        query, key, weight = query / 2, key / 2, weight / 2
        offset = offset + weight.sum()
    if isinstance(offset, Tensor) or offset:
        # A feature of which tanh is 1/2, whatever the tokens: it adds half its weight.
        query = torch.nn.functional.pad(query, (0, 1), value=0.5493061443340549)
        key = torch.nn.functional.pad(key, (0, 1))
        twice = 2 * torch.as_tensor(offset, dtype=query.dtype).reshape(1)
        weight = torch.cat([weight, twice])
    return query, key, weight
