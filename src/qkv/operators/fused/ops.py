"""The kernels as torch operators: `qkv::fused_forward` and `qkv::fused_backward`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, get_type_hints

import torch
from torch import Tensor, nn

from qkv.jit.arguments import NAMES
from qkv.jit.kernels import Bound
from qkv.jit.scratch import give_back, take
from qkv.looking import may_look
from qkv.operators.fused import backward as backward_driver
from qkv.operators.fused import forward as forward_driver
from qkv.operators.fused import reference
from qkv.operators.fused.forward import Cut, Outputs
from qkv.operators.fused.gradients import Gradients, Sizes, Units, Upstream, scratch_shapes
from qkv.operators.fused.launch import Call, launch_of
from qkv.operators.fused.registry import functions_of

# Scores are kept for the backward pass while they take at most this many times the memory of query,
# key, value and answer. They are a quarter of its work.
KEPT = 2

# Not `torch.library.custom_op`: at its first call that imports torch._dynamo, a second's work, and
# each call through it costs more.
_TYPES: dict[Any, str] = {Tensor: "Tensor", Tensor | None: "Tensor?", str: "str", float: "float"}
_CALL = ", ".join(f"{_TYPES[of]} {name}" for name, of in get_type_hints(Call).items())
_GIVEN = "Tensor answer, Tensor log_total, Tensor normal, Tensor kept"
torch.library.define(
    "qkv::fused_forward", f"({_CALL}, bool keep) -> (Tensor, Tensor, Tensor, Tensor)"
)
torch.library.define(
    "qkv::fused_backward",
    f"(Tensor grad_answer, Tensor grad_log_total, {_GIVEN}, {_CALL}, bool bias_wanted)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Answer and log_total; for the backward pass each query's maximum and inverse total, and,
    if they are to be kept, the scores.
    """
    *of_call, keep = arguments
    call = Call(*of_call)
    launch, query = launch_of(call), call.query
    operands = launch.operands(call)
    piece, pieces = launch.forward_pieces()
    lead = (*launch.batch, launch.n) if pieces == 1 else (pieces, *launch.batch, launch.n)
    answer = query.new_empty((*lead, launch.value_depth))
    log_total, normal = query.new_empty(lead), query.new_empty((*lead, 2))
    outputs = [answer, log_total, normal]
    kept = None
    if keep:
        # Pairs far outside the intervals are not even visited.
        new = query.new_empty if call.start is None else query.new_zeros
        kept = new((*launch.batch, launch.n, launch.m))
        outputs.append(kept)

    def bind() -> Bound:
        chunk = launch.chunk()
        return forward_driver.forward.bind(
            Cut(launch.layout.size, chunk, piece),
            launch.addresses(NAMES[query.dtype], backward=False),
            *operands,
            Outputs(answer, log_total, normal, kept),
            count=pieces * launch.layout.size * -(-launch.n // chunk),
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

    launch.once(("forward", keep), bind)([*operands.arrays(), *outputs])
    if pieces > 1:
        answer, log_total, normal = _merged(answer, log_total, normal)
    return answer, log_total, normal, query.new_empty(0, 0) if kept is None else kept


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


def _forward_fake(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *of_call, keep = arguments
    query, key, value, *_ = of_call
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    shape = (*batch, query.shape[-2])
    totals = query.new_empty(shape), query.new_empty((*shape, 2))
    kept = query.new_empty((*shape, key.shape[-2]) if keep else (0, 0))
    return query.new_empty((*shape, value.shape[-1])), *totals, kept


torch.library.impl("qkv::fused_forward", "cpu", _forward)
torch.library.register_fake("qkv::fused_forward", _forward_fake)


def _backward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of query, key, value, parameter and bias (of size 0 if not wanted)."""
    grad_answer, grad_log_total, answer, log_total, normal, kept, *of_call, bias_wanted = arguments
    call = Call(*of_call)
    query, key, value, parameter, bias = call[:5]
    launch = launch_of(call)
    operands = launch.operands(call)
    piece, pieces = launch.pieces()
    units = (len(launch.layout.group_start) - 1) * pieces

    layers = (pieces, query.shape[:-2].numel(), *query.shape[-2:])
    memory = take(math.prod(layers) * 8)
    grad_query = memory[: math.prod(layers) * 8].view(torch.float64).view(layers).zero_()
    grad_key, grad_value = key.new_zeros(key.shape), value.new_zeros(value.shape)
    grad_parameter = parameter.new_zeros((max(1, units), parameter.numel()), dtype=torch.float64)
    grad_bias = None
    if bias is not None and bias_wanted:
        copies = pieces if bias.shape[-1] == 1 else 1
        grad_bias = bias.new_zeros((copies, bias.shape[:-2].numel(), *bias.shape[-2:]))
    outputs = Outputs(
        answer.contiguous(),
        log_total.contiguous(),
        normal.contiguous(),
        kept if kept.numel() else None,
    )
    upstream = Upstream(grad_answer.contiguous(), grad_log_total.contiguous())
    gradients = Gradients(
        grad_query, grad_key, grad_value, grad_parameter, grad_bias, launch.layout.gradients
    )
    cut = Units(launch.layout.order, launch.layout.group_start, piece, pieces, launch.value_rows)

    def bind() -> Bound:
        functions = launch.addresses(NAMES[query.dtype], backward=True)
        sizes = Sizes(
            launch.width,
            query.shape[-1],
            launch.query_depth,
            key.shape[-1],
            launch.key_depth,
            launch.value_depth,
            parameter.numel(),
            launch.functions.parts,
        )
        return backward_driver.backward.bind(
            cut,
            functions,
            *operands,
            outputs,
            upstream,
            gradients,
            count=units,
            scratch=scratch_shapes(sizes, functions.differentiate_rows, launch.value_rows),
            most_threads=launch.threads,
        )

    arrays = (*cut[:2], *operands.arrays(), *outputs, *upstream, *gradients)
    key_of_call = ("backward", outputs.kept is None, grad_bias is None)
    launch.once(key_of_call, bind)([x for x in arrays if x is not None])

    summed = grad_query.sum(0) if pieces > 1 else grad_query[0]
    whole = torch.empty_like(query, memory_format=torch.contiguous_format)
    whole.view(summed.shape).copy_(summed)
    give_back(memory)
    return (
        whole,
        grad_key,
        grad_value,
        grad_parameter.sum(0).to(parameter.dtype).view(parameter.shape),
        query.new_empty(0) if grad_bias is None or bias is None else grad_bias.sum(0).view_as(bias),
    )


def _load(call: Call) -> None:
    """Load the backward pass, which compiles it if it never was used before."""
    real = NAMES[call.query.dtype]
    backward_driver.backward.address(real)
    launch_of(call).addresses(real, backward=True)


def failure(kind: str, dtype: torch.dtype, backward: bool) -> str | None:
    """Why there are no kernels for this similarity and type, if they were tried in vain."""
    drivers = [forward_driver.forward, *([backward_driver.backward] if backward else [])]
    for function in (*drivers, *functions_of(kind).callbacks()):
        reason = function.failure(NAMES[dtype])
        if reason is not None:
            return reason
    return None


def _backward_fake(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    *of_call, bias_wanted = arguments[6:]
    *main, bias = of_call[:5]
    found = [tensor.new_empty(tensor.shape) for tensor in main]
    wanted = bias is not None and bias_wanted
    return (*found, bias.new_empty(bias.shape) if wanted else main[0].new_empty(0))


torch.library.impl("qkv::fused_backward", "cpu", _backward)
torch.library.register_fake("qkv::fused_backward", _backward_fake)


def _save_forward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.kind, ctx.rate, _ = inputs
    ctx.save_for_backward(*tensors, *output)
    # No gradient reaches the scores that were kept; zeros in their place would cost as much memory.
    ctx.set_materialize_grads(False)


def _differentiate_forward(
    ctx: Any,
    grad_answer: Tensor | None,
    grad_log_total: Tensor | None,
    grad_normal: Tensor | None,
    grad_kept: Tensor | None,
) -> Any:
    *inputs, answer, log_total, normal, kept = ctx.saved_tensors
    wanted = ctx.needs_input_grad
    run = fused_backward if torch.is_grad_enabled() or not _eager(answer) else _backward
    gradients = run(
        torch.zeros_like(answer) if grad_answer is None else grad_answer,
        torch.zeros_like(log_total) if grad_log_total is None else grad_log_total,
        answer,
        log_total,
        normal,
        kept,
        *inputs,
        ctx.kind,
        ctx.rate,
        wanted[4],
    )
    found = [gradient if wanted[i] else None for i, gradient in enumerate(gradients)]
    return (*found, *(None,) * 7)


torch.library.register_autograd(
    "qkv::fused_forward", _differentiate_forward, setup_context=_save_forward
)
fused_forward = torch.ops.qkv.fused_forward.default


class _Forward(torch.autograd.Function):
    """The forward operator for eager calls, which need none of what tracing does for it."""

    forward = staticmethod(_forward)
    setup_context = staticmethod(_save_forward)
    backward = staticmethod(_differentiate_forward)


def _eager(tensor: Tensor) -> bool:
    """Whether nobody traces, transforms or watches the operators that are called."""
    if not may_look(tensor) or type(tensor) not in (Tensor, nn.Parameter):
        return False
    # The public surface has no such question; the name is checked by a test.
    return bool(torch._C._len_torch_dispatch_stack() == 0)


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.kind, ctx.rate, ctx.bias_wanted = inputs
    del tensors[2:6]  # what the forward pass gave: computed again
    ctx.save_for_backward(*tensors)


def _differentiate_backward(ctx: Any, *upstream: Tensor) -> Any:
    """The second order, through the reference: dense, and differentiable as often as one likes."""
    grad_answer, grad_log_total, *inputs = ctx.saved_tensors
    with torch.enable_grad():
        leaves: list[Any] = [
            None if t is None else t.detach().requires_grad_()
            for t in (*inputs[:5], grad_answer, grad_log_total)
        ]
        call = Call._make([*leaves[:5], *inputs[5:], ctx.kind, ctx.rate])
        outputs = reference.attend(call)
        first = [t for t in leaves[:5] if t is not None]
        gradients = torch.autograd.grad(
            outputs, first, leaves[5:], create_graph=True, materialize_grads=True
        )
        pairs = [
            (gradient, up)
            for gradient, up in zip(gradients, upstream, strict=False)
            if gradient.requires_grad and up.shape == gradient.shape
        ]
        present = [t for t in leaves if t is not None]
        second = iter(
            torch.autograd.grad(
                [pair[0] for pair in pairs],
                present,
                [pair[1] for pair in pairs],
                allow_unused=True,
            )
        )
    found = [None if t is None else next(second) for t in leaves]
    return (found[5], found[6], None, None, None, None, *found[:5], *(None,) * 7)


torch.library.register_autograd(
    "qkv::fused_backward", _differentiate_backward, setup_context=_save_backward
)
fused_backward = torch.ops.qkv.fused_backward.default


def attend(call: Call) -> tuple[Tensor, Tensor]:
    """Answer (..., n, d_v) and log_total (..., n) of one fused similarity."""
    wanted = call[:5]
    differentiable = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in wanted
    )
    run: Callable[..., Any] = fused_forward
    if _eager(call.query):
        if differentiable:  # if there is no way back, now is the time to say so
            _load(call)
        run = _Forward.apply if differentiable else _forward
    keep = differentiable and _worth_keeping(call)
    answer, log_total, _, _ = run(*call, keep)
    return answer, log_total


def _worth_keeping(call: Call) -> bool:
    """Whether the scores take little more memory than the tensors, so that memory stays linear."""
    if functions_of(call.kind).kept_scores is not None:
        return False  # they alone would not do
    query, key, value = call[:3]
    n, m = query.shape[-2], key.shape[-2]
    own = n * (query.shape[-1] + value.shape[-1]) + m * (key.shape[-1] + value.shape[-1])
    return bool(n * m <= KEPT * own)
