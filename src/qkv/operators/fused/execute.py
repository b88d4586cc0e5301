"""From a call to the kernels and back: outputs and gradients are made here, and drivers run."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.jit.arguments import NAMES
from qkv.jit.kernels import Bound
from qkv.jit.scratch import give_back, take
from qkv.memory import keep_freed_pages
from qkv.operators.fused import backward as backward_driver
from qkv.operators.fused import forward as forward_driver
from qkv.operators.fused.forward import Cut, Outputs
from qkv.operators.fused.gradients import Gradients, Sizes, Units, Upstream, scratch_shapes
from qkv.operators.fused.launch import Call, Launch, launch_of


class Answered(NamedTuple):
    """What the forward pass gives, the last two for the backward pass alone."""

    answer: Tensor  # (..., n, d_v)
    log_total: Tensor  # (..., n)
    normal: Tensor  # (..., n, 2): each query's maximum and inverse total
    kept: Tensor | None  # (..., n, longest): the scores, if they are kept


class WantedGradients(NamedTuple):
    """Which gradients are asked for beside those of query, key and value."""

    parameter: bool
    bias: bool


def forward(call: Call, longest: int, differentiable: bool = False) -> Answered:
    """The answer of one fused similarity, with its scores where `longest` is not 0: how many keys
    a query sees at most."""
    launch, query = launch_of(call), call.query
    if differentiable and not launch.differentiable:
        # If there is no way back, now is the time to say so.
        _load_backward(launch, NAMES[query.dtype])
    call = launch.in_memory(call)
    piece, pieces = launch.forward_pieces
    lead = (*launch.batch, launch.n) if pieces == 1 else (pieces, *launch.batch, launch.n)
    answer = query.new_empty((*lead, launch.value_depth))
    log_total, normal = query.new_empty(lead), query.new_empty((*lead, 2))
    arrays = [*launch.arrays(call), answer, log_total, normal]
    kept = None
    if longest:
        kept = query.new_empty((*launch.batch, launch.n, longest))
        arrays.append(kept)
    bound = launch.bound.get(("forward", longest))
    if bound is None:
        outputs = Outputs(answer, log_total, normal, kept)
        bound = _bind_forward(launch, call, piece, pieces, outputs)
        launch.bound["forward", longest] = bound
    bound(arrays)
    if pieces > 1:
        answer, log_total, normal = _merged(answer, log_total, normal)
    return Answered(answer, log_total, normal, kept)


def _bind_forward(launch: Launch, call: Call, piece: int, pieces: int, outputs: Outputs) -> Bound:
    chunk = launch.chunk()
    count = pieces * launch.layout.size * -(-launch.n // chunk)
    return forward_driver.forward.bind(
        Cut(launch.layout.size, chunk, piece),
        launch.addresses(NAMES[call.query.dtype], backward=False),
        *launch.operands(call),
        outputs,
        count=count,
        grain=launch.portion(count),
        scratch=forward_driver.scratch_shapes(
            chunk,
            launch.width,
            launch.query_depth,
            launch.key_depth,
            launch.value_depth,
            launch.key_rows,
        ),
        most_threads=launch.threads,
    )


def _merged(answer: Tensor, log_total: Tensor, normal: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One layer of many, each of which has seen a piece of the keys."""
    empty = log_total == -torch.inf
    top = torch.where(empty, -torch.inf, normal[..., 0].double())
    highest = top.amax(0)
    highest = torch.where(highest == -torch.inf, 0.0, highest)
    share = torch.exp(top - highest) / normal[..., 1]  # weights relative to e^highest
    share = torch.where(empty, 0.0, share)
    total = share.sum(0)
    inverse = torch.where(total == 0, 0.0, 1 / total)
    merged = (answer * (share * inverse).unsqueeze(-1)).sum(0)
    log_total = (highest + total.log()).to(answer.dtype)
    normal = torch.stack([highest, inverse], dim=-1).to(answer.dtype)
    return merged.to(answer.dtype), log_total, normal


def backward(
    grad_answer: Tensor,
    grad_log_total: Tensor | None,
    answered: Answered,
    call: Call,
    wanted: WantedGradients,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of query, key, value, and of parameter and bias if they are wanted."""
    launch, shapes = launch_of(call), call
    call = launch.in_memory(call)
    piece, pieces = launch.pieces
    units = launch.groups * pieces

    query, parameter = shapes.query, shapes.parameter
    memory = None
    if launch.functions.has_steps:  # no gradients of tokens, no room for them
        grad_query = query.new_empty((0, 0, 0, 0), dtype=torch.float64)
        grad_key = shapes.key.new_empty(0, 0, 0)
    else:
        layers = (pieces, query.shape[:-2].numel(), *query.shape[-2:])
        size = math.prod(layers) * 8
        memory = take(size)
        grad_query = memory[:size].view(torch.float64).view(layers)
        grad_key = torch.empty_like(shapes.key, memory_format=torch.contiguous_format)
    grad_value = torch.empty_like(shapes.value, memory_format=torch.contiguous_format)
    grad_parameter = torch.zeros((max(1, units), parameter.numel()), dtype=torch.float64)
    grad_bias, bias = None, shapes.bias
    if bias is not None and wanted.bias:
        copies = pieces if bias.shape[-1] == 1 else 1
        grad_bias = bias.new_zeros((copies, bias.shape[:-2].numel(), *bias.shape[-2:]))
    if grad_log_total is None:
        grad_log_total = torch.zeros_like(answered.log_total)
    outputs = Outputs(*(None if x is None else x.contiguous() for x in answered))
    upstream = Upstream(grad_answer.contiguous(), grad_log_total.contiguous())
    gradients = Gradients(
        grad_query, grad_key, grad_value, grad_parameter, grad_bias, launch.layout.gradients
    )
    layout = launch.layout
    cut = Units(layout.order, layout.group_start, piece, pieces, launch.value_rows)
    longest = 0 if outputs.kept is None else outputs.kept.shape[-1]
    key_of_call = ("backward", longest, grad_bias is None)
    bound = launch.bound.get(key_of_call)
    if bound is None:
        bound = _bind_backward(launch, call, cut, outputs, upstream, gradients)
        launch.bound[key_of_call] = bound
    arrays = (*cut[:2], *launch.arrays(call), *outputs, *upstream, *gradients)
    bound([x for x in arrays if x is not None])

    if memory is None:
        nothing = query.new_zeros(())
        whole, grad_key = nothing.expand_as(query), nothing.expand_as(shapes.key)
    else:
        summed = grad_query.sum(0) if pieces > 1 else grad_query
        whole = summed.to(query.dtype, copy=True).view(query.shape)
        give_back(memory)
    return (
        whole,
        grad_key,
        grad_value,
        grad_parameter.sum(0).to(parameter.dtype).view(parameter.shape)
        if wanted.parameter
        else None,
        None if grad_bias is None or bias is None else grad_bias.sum(0).view_as(bias),
    )


def _bind_backward(
    launch: Launch,
    call: Call,
    cut: Units,
    outputs: Outputs,
    upstream: Upstream,
    gradients: Gradients,
) -> Bound:
    keep_freed_pages()  # those of gradients, for the next
    functions = launch.addresses(NAMES[call.query.dtype], backward=True)
    sizes = Sizes(
        launch.width,
        call.query.shape[-1],
        launch.query_depth,
        call.key.shape[-1],
        launch.key_depth,
        launch.value_depth,
        call.parameter.numel(),
        launch.functions.parts,
    )
    count = launch.groups * cut.pieces
    return backward_driver.backward.bind(
        cut,
        functions,
        *launch.operands(call),
        outputs,
        upstream,
        gradients,
        count=count,
        grain=launch.portion(count),
        scratch=scratch_shapes(sizes, functions.differentiate_rows, launch.value_rows),
        most_threads=launch.threads,
    )


def _load_backward(launch: Launch, real: str) -> None:
    """Load the backward pass, which compiles it if it never was used before."""
    backward_driver.backward.address(real)
    launch.addresses(real, backward=True)
    launch.differentiable = True
