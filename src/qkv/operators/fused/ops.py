"""The kernels as torch operators: `qkv::fused_forward` and `qkv::fused_backward`."""

from __future__ import annotations

from typing import Any, get_type_hints

import torch
from torch import Tensor

from qkv.jit.arguments import NAMES
from qkv.memory import TILE_BYTES
from qkv.operators.fused import backward as backward_driver
from qkv.operators.fused import execute, reference
from qkv.operators.fused import forward as forward_driver
from qkv.operators.fused.execute import Answered, WantedGradients
from qkv.operators.fused.launch import TENSORS, Call
from qkv.operators.fused.registry import functions_of
from qkv.operators.second_order import Gradients
from qkv.operators.tiles import rows_at_once
from qkv.tracing import can_read_values, is_eager, is_finite, sizes_are_known

# Scores are kept for the backward pass while they take at most this many times the memory of query,
# key, value and answer. They are a quarter of its work.
KEPT = 2

#: Scores above these are known to some hundredths only.
LARGE = {dtype: 2**-6 / torch.finfo(dtype).eps for dtype in (torch.float32, torch.float64)}

# Not `torch.library.custom_op`: at its first call that imports torch._dynamo, a second's work, and
# each call through it costs more.
_TYPES: dict[Any, str] = {Tensor: "Tensor", Tensor | None: "Tensor?", str: "str", float: "float"}
_CALL = ", ".join(f"{_TYPES[of]} {name}" for name, of in get_type_hints(Call).items())
_GIVEN = "Tensor answer, Tensor log_total, Tensor normal, Tensor kept"
torch.library.define(
    "qkv::fused_forward", f"({_CALL}, SymInt longest) -> (Tensor, Tensor, Tensor, Tensor)"
)
torch.library.define(
    "qkv::fused_backward",
    f"(Tensor grad_answer, Tensor grad_log_total, {_GIVEN}, {_CALL}, bool bias_wanted)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def _forward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *of_call, longest = arguments
    answer, log_total, normal, kept = execute.forward(Call(*of_call), longest)
    return answer, log_total, normal, answer.new_empty(0, 0) if kept is None else kept


def _forward_fake(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    *of_call, longest = arguments
    query, key, value, *_ = of_call
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    shape = (*batch, query.shape[-2])
    totals = query.new_empty(shape), query.new_empty((*shape, 2))
    kept = query.new_empty((*shape, longest) if longest else (0, 0))
    return query.new_empty((*shape, value.shape[-1])), *totals, kept


torch.library.impl("qkv::fused_forward", "cpu", _forward)
torch.library.register_fake("qkv::fused_forward", _forward_fake)


def failure(kind: str, dtype: torch.dtype, backward: bool) -> str | None:
    """Why there are no kernels for this similarity and type, if they were tried in vain."""
    drivers = [forward_driver.forward, *([backward_driver.backward] if backward else [])]
    for function in (*drivers, *functions_of(kind).callbacks()):
        reason = function.failure(NAMES[dtype])
        if reason is not None:
            return reason
    return None


def _gradients(
    grad_answer: Tensor,
    grad_log_total: Tensor | None,
    answered: Answered,
    call: Call,
    wanted: WantedGradients,
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """The gradients of query, key, value, and of parameter and bias if they are wanted.

    The kernel makes weights again, as exp(score − maximum), and adds scores up in another order
    than on the way forward. Where these differ before the point, it would find any weights.
    """
    if answered.kept is None and not functions_of(call.kind).proportional:
        # Beside the maxima stand inverse totals, which are 1 at most.
        largest = torch.linalg.vector_norm(answered.normal, torch.inf).item()
        large = largest > LARGE[answered.normal.dtype]
        if large and is_finite(*call[:3]):  # the formula does not hide what is masked
            if grad_log_total is None:
                grad_log_total = torch.zeros_like(answered.log_total)
            query, key, value, parameter, *bias = reference.gradients(
                call, grad_answer, grad_log_total
            )
            return query, key, value, parameter, bias[0] if bias and wanted.bias else None
    return execute.backward(grad_answer, grad_log_total, answered, call, wanted)


def _backward(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of query, key, value, parameter and bias (of size 0 if not wanted)."""
    grad_answer, grad_log_total, answer, log_total, normal, kept, *of_call, bias_wanted = arguments
    answered = Answered(answer, log_total, normal, kept if kept.numel() else None)
    query, key, value, parameter, bias = _gradients(
        grad_answer, grad_log_total, answered, Call(*of_call), WantedGradients(True, bias_wanted)
    )
    assert parameter is not None
    no_bias = query.new_empty(0)
    # The gradients of steps are one 0 for all.
    return query.contiguous(), key.contiguous(), value, parameter, no_bias if bias is None else bias


def _backward_fake(*arguments: Any) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    *of_call, bias_wanted = arguments[6:]
    *main, bias = of_call[:5]
    gradients = [tensor.new_empty(tensor.shape) for tensor in main]
    wanted = bias is not None and bias_wanted
    return (*gradients, bias.new_empty(bias.shape) if wanted else main[0].new_empty(0))


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
    gradients = fused_backward(
        torch.zeros_like(answer) if grad_answer is None else grad_answer,
        torch.zeros_like(log_total) if grad_log_total is None else grad_log_total,
        answer,
        log_total,
        normal,
        answer.new_empty(0, 0) if kept is None else kept,
        *inputs,
        ctx.kind,
        ctx.rate,
        wanted[4],
    )
    asked = [gradient if wanted[i] else None for i, gradient in enumerate(gradients)]
    return (*asked, *(None,) * 7)


torch.library.register_autograd(
    "qkv::fused_forward", _differentiate_forward, setup_context=_save_forward
)
fused_forward = torch.ops.qkv.fused_forward.default


class _Eager(torch.autograd.Function):
    """The same for eager calls, past the dispatcher: it takes longer than a short sequence."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> tuple[Tensor, Tensor]:
        call = Call(*arguments[:-1])
        answered = execute.forward(call, arguments[-1], differentiable=True)
        ctx.save_for_backward(*call[:TENSORS], *answered)
        ctx.kind, ctx.rate = call.kind, call.rate
        ctx.set_materialize_grads(False)
        return answered.answer, answered.log_total

    @staticmethod
    def backward(ctx: Any, grad_answer: Tensor | None, grad_log_total: Tensor | None) -> Any:
        if torch.is_grad_enabled() or not is_eager(ctx.saved_tensors[0]):
            return _differentiate_forward(ctx, grad_answer, grad_log_total, None, None)
        saved, wanted = ctx.saved_tensors, ctx.needs_input_grad
        answered = Answered._make(saved[TENSORS:])
        gradients = _gradients(
            torch.zeros_like(answered.answer) if grad_answer is None else grad_answer,
            grad_log_total,
            answered,
            Call._make((*saved[:TENSORS], ctx.kind, ctx.rate)),
            WantedGradients(wanted[3], wanted[4]),
        )
        return (*(each if wanted[i] else None for i, each in enumerate(gradients)), *(None,) * 7)


def _save_backward(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, ctx.kind, ctx.rate, ctx.bias_wanted = inputs
    del tensors[2:6]  # what the forward pass gave: computed again
    ctx.save_for_backward(*tensors)


def _differentiate_backward(ctx: Any, *upstream: Tensor) -> Any:
    """The second order, through the reference, a tile of queries at a time."""
    grad_answer, grad_log_total, *tensors = ctx.saved_tensors
    call = Call._make([*tensors, ctx.kind, ctx.rate])
    tiles = reference.tiles(call)
    ups: list[Any] = [upstream[0], *upstream[1:4]]
    if call.bias is not None:
        up = upstream[4] if ctx.bias_wanted else None
        ups.insert(1 if len(tiles.rows) == 2 else len(ups), up)
    grads = [grad_answer, grad_log_total.unsqueeze(-1)]
    gradients = Gradients(tiles.function, tiles.rows, tiles.whole, grads, ups)
    # A graph of some 30 such blocks; that of additive scores, which is written out, has a third.
    tile = TILE_BYTES if call.kind == "additive" else TILE_BYTES // 2
    pulled = gradients.pull(rows_at_once(tile, tiles.row_bytes))
    of_answer, of_total = pulled.grads
    of_query, *of_rows = pulled.rows
    of_key, of_value, of_parameter, *of_whole = pulled.whole
    of_bias = next(iter((*of_rows, *of_whole)), None)
    return (
        of_answer,
        None if of_total is None else of_total.squeeze(-1),
        *(None,) * 4,
        *(of_query, of_key, of_value, of_parameter, of_bias),
        *(None,) * 7,
    )


torch.library.register_autograd(
    "qkv::fused_backward", _differentiate_backward, setup_context=_save_backward
)
fused_backward = torch.ops.qkv.fused_backward.default


def attend(call: Call) -> tuple[Tensor, Tensor]:
    """Answer (..., n, d_v) and log_total (..., n) of one fused similarity."""
    differentiable = torch.is_grad_enabled() and (
        call.query.requires_grad
        or call.key.requires_grad
        or call.value.requires_grad
        or call.parameter.requires_grad
        or (call.bias is not None and call.bias.requires_grad)
    )
    longest = _worth_keeping(call) if differentiable else 0
    if not is_eager(call.query):
        answer, log_total, _, _ = fused_forward(*call, longest)
    elif differentiable:
        answer, log_total = _Eager.apply(*call, longest)  # type: ignore[no-untyped-call]
    else:
        answer, log_total, _, _ = execute.forward(call, longest)
    return answer, log_total


def _worth_keeping(call: Call) -> int:
    """How many scores of each query to keep, those of its run; 0: none.

    They take little more memory than the tensors, so that memory stays linear.
    """
    if functions_of(call.kind).kept_scores is not None:
        return 0  # they alone would not do
    query, key, value = call[:3]
    n, m = query.shape[-2], key.shape[-2]
    if not sizes_are_known(n, m):
        return 0
    numbers = n * (query.shape[-1] + value.shape[-1]) + m * (key.shape[-1] + value.shape[-1])
    if n * m <= KEPT * numbers:
        return m
    if call.start is None or call.stop is None or not can_read_values(call.start, call.stop):
        return 0
    longest = int((call.stop.clamp(max=m) - call.start.clamp(min=0)).max())
    return longest if 0 < n * longest <= KEPT * numbers else 0
