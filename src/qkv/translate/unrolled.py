"""All steps of a GRU decoder with additive attention as one function with its own way back.

The formula is that of :class:`~qkv.translate.cells.Gru` and :class:`qkv.Additive`, and tests hold
it to theirs. It is quicker because a step is few, large operations, and because the way back
makes each parameter's gradient once, from all steps, where autograd adds up one for each step.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from qkv.similarity import Additive
from qkv.translate.cells import Cell

if TYPE_CHECKING:
    from qkv.translate.recurrent import Looked


def unroll(
    cell: Cell, similarity: Additive, memory: Looked, read: Tensor, first: Tensor
) -> tuple[Tensor, Tensor]:
    """States (batch, t, d) and contexts (batch, t, c) after reading (batch, t, 3d) from a state.

    `first` is the state before, (batch, 1, d).
    """
    query = similarity.query_projection
    query_bias = query.bias if query.bias is not None else read.new_zeros(query.out_features)
    # The state's own gates and the query it asks with are one product.
    weight = torch.cat([cell.hidden.weight, query.weight])  # (3d + h, d)
    bias = torch.cat([cell.hidden.bias, query_bias])
    hidden, context = _Unrolled.apply(
        read.transpose(0, 1).contiguous(),
        first.squeeze(1),
        memory.key,
        memory.value,
        memory.allowed.squeeze(1),
        similarity.weight,
        cell.context.weight,
        weight,
        bias,
    )
    return hidden.transpose(0, 1), context.transpose(0, 1)


class _Kept(NamedTuple):
    """What the way back needs of all steps."""

    before: Tensor  # (t, batch, d): the states before each step
    compared: Tensor  # (t, batch, s, h): tanh(query + key)
    weights: Tensor  # (t, batch, s)
    context: Tensor  # (t, batch, c)
    gates: Tensor  # (t, batch, 2d): reset and update
    new: Tensor  # (t, batch, d): the candidate state
    own: Tensor  # (t, batch, d): what the reset gate lets through to it


class _Unrolled(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        read: Tensor,  # (t, batch, 3d)
        first: Tensor,  # (batch, d)
        key: Tensor,  # (batch, s, h)
        value: Tensor,  # (batch, s, c)
        allowed: Tensor,  # (batch, s)
        score: Tensor,  # (h,)
        by_context: Tensor,  # (3d, c)
        by_state: Tensor,  # (3d + h, d)
        bias: Tensor,  # (3d + h,)
    ) -> tuple[Tensor, Tensor]:
        steps, (batch, s, h), d, c = len(read), key.shape, first.shape[-1], value.shape[-1]
        hidden = read.new_empty(steps + 1, batch, d)
        kept = _Kept(
            hidden[:-1],
            *(
                read.new_empty(steps, batch, *shape)
                for shape in ((s, h), (s,), (c,), (2 * d,), (d,), (d,))
            ),
        )
        never = torch.where(allowed, 0.0, -torch.inf).to(read.dtype)
        hidden[0] = first
        for t in range(steps):
            before = hidden[t]
            asked = torch.addmm(bias, before, by_state.mT)  # (batch, 3d + h)
            compared = torch.add(key, asked[:, None, 3 * d :], out=kept.compared[t]).tanh_()
            scores = (compared.view(-1, h) @ score).view(batch, s) + never
            weights = torch.softmax(scores, dim=-1, out=kept.weights[t])
            context = kept.context[t]
            torch.bmm(weights.unsqueeze(1), value, out=context.unsqueeze(1))
            given = torch.addmm(read[t], context, by_context.mT)  # (batch, 3d)
            gates = torch.add(given[:, : 2 * d], asked[:, : 2 * d], out=kept.gates[t]).sigmoid_()
            own = kept.own[t].copy_(asked[:, 2 * d : 3 * d])
            new = torch.addcmul(given[:, 2 * d :], gates[:, :d], own, out=kept.new[t]).tanh_()
            torch.lerp(new, before, gates[:, d:], out=hidden[t + 1])
        ctx.save_for_backward(*kept, key, value, score, by_context, by_state)
        return hidden[1:], kept.context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_hidden: Tensor, grad_context: Tensor) -> tuple[Tensor | None, ...]:
        *saved, key, value, score, by_context, by_state = ctx.saved_tensors
        kept = _Kept(*saved)
        steps, batch, d = kept.before.shape
        h = key.shape[-1]
        to_given = kept.before.new_empty(steps, batch, 3 * d)
        to_asked = kept.before.new_empty(steps, batch, 3 * d + h)
        to_context = kept.before.new_empty(kept.context.shape)
        to_scores = kept.before.new_empty(kept.weights.shape)
        to_key = torch.zeros_like(key)
        to_hidden = torch.zeros_like(kept.before[0])
        for t in reversed(range(steps)):
            to_hidden = to_hidden + grad_hidden[t]
            reset, update = kept.gates[t, :, :d], kept.gates[t, :, d:]
            new, given, asked = kept.new[t], to_given[t], to_asked[t]
            # h' = new + update · (before − new)
            back = to_hidden * (1.0 - update)
            torch.mul(back, 1.0 - new * new, out=given[:, 2 * d :])
            torch.mul(given[:, 2 * d :], reset, out=asked[:, 2 * d : 3 * d])
            torch.mul(
                given[:, 2 * d :] * kept.own[t], reset * (1.0 - reset), out=given[:, :d]
            )
            torch.mul(back * (kept.before[t] - new), update, out=given[:, d : 2 * d])
            asked[:, : 2 * d] = given[:, : 2 * d]
            # through the context to the weights and their scores
            context = torch.addmm(grad_context[t], given, by_context, out=to_context[t])
            to_weights = torch.bmm(value, context.unsqueeze(-1)).squeeze(-1)  # (batch, s)
            weights = kept.weights[t]
            inner = (weights * to_weights).sum(-1, keepdim=True)
            scores = torch.mul(weights, to_weights - inner, out=to_scores[t])
            # through tanh to the key and the query
            compared = kept.compared[t]
            slope = torch.addcmul(score, compared * score, compared, value=-1.0)  # w(1 − tanh²)
            slope.mul_(scores.unsqueeze(-1))
            to_key += slope
            torch.sum(slope, dim=1, out=asked[:, 3 * d :])
            to_hidden = torch.addmm(to_hidden * update, asked, by_state)
        flat = to_asked.flatten(0, 1)
        return (
            to_given,
            to_hidden,
            to_key,
            torch.bmm(kept.weights.permute(1, 2, 0), to_context.transpose(0, 1)),
            None,
            to_scores.view(-1) @ kept.compared.view(-1, h),
            to_given.flatten(0, 1).mT @ kept.context.flatten(0, 1),
            flat.mT @ kept.before.flatten(0, 1),
            flat.sum(0),
        )
