"""The kernels as torch operators: `qkv::fused_forward` and `qkv::fused_backward`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from qkv.looking import may_look
from qkv.operators.fused import reference, scratch
from qkv.operators.fused.kernels import kernel
from qkv.operators.fused.operands import Operands
from qkv.operators.fused.space import backward_space, forward_space

KINDS = (
    "additive",
    "gated",
    "gaussian",
    "euclidean",
    "laplacian",
    "boxcar",
    "triangular",
    "epanechnikov",
)

REALS = {torch.float32: np.float32, torch.float64: np.float64}

# Scores are kept for the backward pass while they take at most this many times the memory of query,
# key, value and answer. They are a quarter of its work.
KEPT = 2

# Not `torch.library.custom_op`: at its first call that imports torch._dynamo, a second's work, and
# each call through it costs more.
_INPUTS = (
    "Tensor query, Tensor key, Tensor value, Tensor parameter, Tensor? bias, Tensor? start, "
    "Tensor? stop, Tensor? mask, Tensor? row_key, str kind, float rate"
)
torch.library.define(
    "qkv::fused_forward", f"({_INPUTS}, bool keep) -> (Tensor, Tensor, Tensor, Tensor)"
)
torch.library.define(
    "qkv::fused_backward",
    "(Tensor grad_answer, Tensor grad_log_total, Tensor answer, Tensor log_total, "
    f"Tensor normal, Tensor kept, {_INPUTS}, bool bias_wanted)"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    parameter: Tensor,
    bias: Tensor | None,
    start: Tensor | None,
    stop: Tensor | None,
    mask: Tensor | None,
    row_key: Tensor | None,
    kind: str,
    rate: float,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Answer and log_total; for the backward pass each query's maximum and inverse total, and,
    if they are to be kept, the scores.
    """
    operands = Operands(query, key, value, parameter, bias, start, stop, mask, row_key, rate)
    answer = query.new_empty((*operands.batch, operands.n, operands.value_depth))
    log_total = query.new_empty((*operands.batch, operands.n))
    normal = query.new_empty((*operands.batch, operands.n, 2))
    kept = query.new_empty(0, 0)
    if keep:
        # Pairs far outside the intervals are not even visited.
        new = query.new_empty if start is None else query.new_zeros
        kept = new((*operands.batch, operands.n, operands.m))
    chunk, size = operands.chunk(), query.element_size()
    kernel(kind, "forward", query.dtype).run(
        (chunk, *operands.inputs, answer, log_total, normal, kept),
        forward_space(kind, size, chunk, query.shape[-1], operands.value_depth),
        operands.threads,
    )
    return answer, log_total, normal, kept


torch.library.impl("qkv::fused_forward", "cpu", _forward)


@torch.library.register_fake("qkv::fused_forward")
def _forward_fake(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    parameter: Tensor,
    bias: Tensor | None,
    start: Tensor | None,
    stop: Tensor | None,
    mask: Tensor | None,
    row_key: Tensor | None,
    kind: str,
    rate: float,
    keep: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2], value.shape[:-2])
    shape = (*batch, query.shape[-2])
    totals = query.new_empty(shape), query.new_empty((*shape, 2))
    kept = query.new_empty((*shape, key.shape[-2]) if keep else (0, 0))
    return query.new_empty((*shape, value.shape[-1])), *totals, kept


def _backward(
    grad_answer: Tensor,
    grad_log_total: Tensor,
    answer: Tensor,
    log_total: Tensor,
    normal: Tensor,
    kept: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    parameter: Tensor,
    bias: Tensor | None,
    start: Tensor | None,
    stop: Tensor | None,
    mask: Tensor | None,
    row_key: Tensor | None,
    kind: str,
    rate: float,
    bias_wanted: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """The gradients of query, key, value, parameter and bias (of size 0 if not wanted)."""
    operands = Operands(query, key, value, parameter, bias, start, stop, mask, row_key, rate)
    piece, pieces = operands.pieces()
    units = max(1, (len(operands.layout.group_start) - 1) * pieces)

    real = REALS[query.dtype]
    grad_query = scratch.zeros((pieces, query.shape[:-2].numel(), *query.shape[-2:]))
    grad_key, grad_value = np.zeros(key.shape, real), np.zeros(value.shape, real)
    grad_parameter = np.zeros((units, parameter.numel()))
    grad_bias = np.zeros((0, 0, 0, 0), real)
    if bias is not None and bias_wanted:
        layers = pieces if bias.shape[-1] == 1 else 1
        grad_bias = np.zeros((layers, bias.shape[:-2].numel(), *bias.shape[-2:]), real)

    given = (answer, log_total, normal, kept, grad_answer, grad_log_total)
    wanted = (grad_query, grad_key, grad_value, grad_parameter, grad_bias)
    size, parameters = query.element_size(), parameter.numel()
    kernel(kind, "backward", query.dtype).run(
        (
            piece,
            pieces,
            operands.layout.order,
            operands.layout.group_start,
            *operands.inputs,
            *(tensor.contiguous() for tensor in given),
            *(torch.from_numpy(array) for array in wanted),
        ),
        backward_space(kind, size, query.shape[-1], operands.value_depth, parameters),
        operands.threads,
    )

    for layer in grad_query[1:]:
        grad_query[0] += layer

    def tensor(array: Any, like: Tensor) -> Tensor:
        return torch.from_numpy(array.astype(real, copy=False)).view(like.shape)

    return (
        # A copy in any case: the layers are scratch.
        torch.from_numpy(grad_query[0].astype(real)).view(query.shape),
        torch.from_numpy(grad_key),
        torch.from_numpy(grad_value),
        tensor(grad_parameter.sum(0), parameter),
        query.new_empty(0)
        if bias is None or not bias_wanted
        else tensor(grad_bias.sum(0) if len(grad_bias) > 1 else grad_bias[0], bias),
    )


torch.library.impl("qkv::fused_backward", "cpu", _backward)


@torch.library.register_fake("qkv::fused_backward")
def _backward_fake(
    grad_answer: Tensor,
    grad_log_total: Tensor,
    answer: Tensor,
    log_total: Tensor,
    normal: Tensor,
    kept: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    parameter: Tensor,
    bias: Tensor | None,
    start: Tensor | None,
    stop: Tensor | None,
    mask: Tensor | None,
    row_key: Tensor | None,
    kind: str,
    rate: float,
    bias_wanted: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    return (
        query.new_empty(query.shape),
        key.new_empty(key.shape),
        value.new_empty(value.shape),
        parameter.new_empty(parameter.shape),
        query.new_empty(0) if bias is None or not bias_wanted else bias.new_empty(bias.shape),
    )


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
    rest = inputs[5:]
    with torch.enable_grad():
        leaves: list[Any] = [
            None if t is None else t.detach().requires_grad_()
            for t in (*inputs[:5], grad_answer, grad_log_total)
        ]
        outputs = reference.attend(*leaves[:5], *rest, ctx.kind, ctx.rate)
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


def attend(
    kind: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    parameter: Tensor,
    bias: Tensor | None = None,
    start: Tensor | None = None,
    stop: Tensor | None = None,
    mask: Tensor | None = None,
    row_key: Tensor | None = None,
    rate: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Answer (..., n, d_v) and log_total (..., n) of one fused similarity.

    `parameter` is w for "additive", the scale of the dot product for "gated", and the inverse
    bandwidth of each dimension for distances. `start` and `stop` (..., n) bound the keys
    that each query may attend to; `mask` (..., n, m) is True where it may; `bias` (..., n, m) is
    added to the logits. `row_key` (batch, n), int32, seeds dropout at `rate`.
    """
    wanted = (query, key, value, parameter, bias)
    differentiable = torch.is_grad_enabled() and any(
        t is not None and t.requires_grad for t in wanted
    )
    run: Callable[..., Any] = fused_forward
    if _eager(query):
        run = _Forward.apply if differentiable else _forward
    answer, log_total, _, _ = run(
        query,
        key,
        value,
        parameter,
        bias,
        start,
        stop,
        mask,
        row_key if rate else None,
        kind,
        rate,
        differentiable and _worth_keeping(query, key, value),
    )
    return answer, log_total


def _worth_keeping(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether the scores take little more memory than the tensors, so that memory stays linear."""
    n, m = query.shape[-2], key.shape[-2]
    own = n * (query.shape[-1] + value.shape[-1]) + m * (key.shape[-1] + value.shape[-1])
    return bool(n * m <= KEPT * own)
