"""Recurrent networks unrolled by hand: all steps as one autograd function.

The formulas are those of :class:`torch.nn.GRU`, of :class:`~qkv.translate.models.cells.Gru` and of
:class:`qkv.Additive`; tests compare them. They are faster because a step is few, large operations,
and because the backward pass computes each parameter's gradient once, from all steps, where
autograd accumulates one for each step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from qkv.similarity import Additive
from qkv.translate.models.cells import Cell
from qkv.translate.models.encoder_memory import EncoderMemory
from qkv.translate.models.gru import Gates


def read_both_ways(encoder: nn.GRU, embedded: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """The states (batch, s, 2d) of a bidirectional GRU, and its last ones (batch, 2d).

    States at padding are undefined.
    """
    batch, s, _ = embedded.shape
    d = encoder.hidden_size
    positions = torch.arange(s, device=embedded.device)
    # Each sentence reversed in place, so that padding comes last in both directions.
    turned = torch.where(
        positions < lengths.unsqueeze(1), lengths.unsqueeze(1) - 1 - positions, positions
    )  # (batch, s)
    back = embedded.gather(1, turned.unsqueeze(-1).expand_as(embedded))
    both = torch.stack([embedded.transpose(0, 1), back.transpose(0, 1)])  # (2, s, batch, e)
    by_token, given_bias, by_state, bias = (
        torch.stack([getattr(encoder, f"{kind}_l0{end}") for end in ("", "_reverse")])
        for kind in ("weight_ih", "bias_ih", "weight_hh", "bias_hh")
    )
    given = torch.baddbmm(given_bias.unsqueeze(1), both.flatten(1, 2), by_token.mT)
    states: Tensor = _BothWays.apply(  # type: ignore[no-untyped-call]
        given.unflatten(1, (s, batch)), by_state, bias
    )  # (s, 2, batch, d)
    last = states[lengths - 1, :, torch.arange(batch, device=embedded.device)]  # (batch, 2, d)
    ahead, back = states.permute(1, 2, 0, 3)  # (batch, s, d) each
    back = back.gather(1, turned.unsqueeze(-1).expand(-1, -1, d))
    return torch.cat([ahead, back], dim=-1), last.flatten(1)


class _BothWays(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        given: Tensor,  # (2, s, batch, 3d)
        by_state: Tensor,  # (2, 3d, d)
        bias: Tensor,  # (2, 3d)
    ) -> Tensor:
        ways, steps, batch, _ = given.shape
        hidden = given.new_zeros(steps + 1, ways, batch, by_state.shape[-1])
        gates = Gates.room(hidden[1:])
        for t in range(steps):
            by_hidden = torch.baddbmm(bias.unsqueeze(1), hidden[t], by_state.mT)  # (2, batch, 3d)
            gates.forward(t, given[:, t], by_hidden, hidden[t], hidden[t + 1])
        ctx.save_for_backward(*gates, hidden, by_state)
        return hidden[1:]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, ...]:
        *saved, hidden, by_state = ctx.saved_tensors
        gates = Gates(*saved)
        steps, ways, batch, d = grad.shape
        to_given = grad.new_empty(ways, steps, batch, 3 * d)
        to_by_hidden = torch.empty_like(to_given)
        to_hidden = torch.zeros_like(hidden[0])
        for t in reversed(range(steps)):
            straight = gates.backward(
                t, to_hidden + grad[t], hidden[t], to_given[:, t], to_by_hidden[:, t]
            )
            to_hidden = torch.baddbmm(straight, to_by_hidden[:, t], by_state)
        flat = to_by_hidden.flatten(1, 2)  # (2, s · batch, 3d)
        before = hidden[:-1].transpose(0, 1).flatten(1, 2)
        return to_given, flat.mT @ before, flat.sum(1)


def decode(
    cell: Cell, similarity: Additive, memory: EncoderMemory, terms: Tensor, first: Tensor
) -> tuple[Tensor, Tensor]:
    """States (batch, t, d), and the input of the readout (batch, t, r), of all steps.

    `terms` is what the tokens contribute to cell and readout, (batch, t, 3d + r), and `first` the
    initial state, (batch, 1, d).
    """
    query = similarity.query_projection
    query_bias = query.bias if query.bias is not None else terms.new_zeros(query.out_features)
    # The state's own gates and the query it asks with are one product.
    weight = torch.cat([cell.hidden.weight, query.weight])  # (3d + h, d)
    bias = torch.cat([cell.hidden.bias, query_bias])
    hidden, given = _Decoded.apply(  # type: ignore[no-untyped-call]
        terms.transpose(0, 1).contiguous(),
        first.squeeze(1),
        memory.key,
        memory.mapped,
        memory.allowed.squeeze(1),
        similarity.weight,
        weight,
        bias,
    )
    return hidden.transpose(0, 1), given.transpose(0, 1)


class _Decoded(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        terms: Tensor,  # (t, batch, 3d + r)
        first: Tensor,  # (batch, d)
        key: Tensor,  # (batch, s, h)
        mapped: Tensor,  # (batch, s, 3d + r)
        allowed: Tensor,  # (batch, s)
        score: Tensor,  # (h,)
        by_state: Tensor,  # (3d + h, d)
        bias: Tensor,  # (3d + h,)
    ) -> tuple[Tensor, Tensor]:
        steps, (batch, s, h), d = len(terms), key.shape, first.shape[-1]
        hidden = terms.new_empty(steps + 1, batch, d)
        compared = terms.new_empty(steps, batch, s, h)  # tanh(query + key)
        weights = terms.new_empty(steps, batch, s)
        given = torch.empty_like(terms)
        gates = Gates.room(hidden[1:])
        never = torch.where(allowed, 0.0, -torch.inf).to(terms.dtype)
        hidden[0] = first
        for t in range(steps):
            by_hidden = torch.addmm(bias, hidden[t], by_state.mT)  # (batch, 3d + h)
            Additive.compare(by_hidden[:, None, 3 * d :], key, out=compared[t].unsqueeze(1))
            scores = torch.mv(compared[t].view(-1, h), score).view(batch, s)
            torch.softmax(scores.add_(never), dim=-1, out=weights[t])
            torch.baddbmm(
                terms[t].unsqueeze(1),
                weights[t].unsqueeze(1),
                mapped,
                out=given[t].unsqueeze(1),
            )
            gates.forward(t, given[t], by_hidden, hidden[t], hidden[t + 1])
        ctx.save_for_backward(*gates, hidden, compared, weights, key, mapped, score, by_state)
        return hidden[1:], given[..., 3 * d :]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_hidden: Tensor, grad_given: Tensor) -> tuple[Tensor | None, ...]:
        *saved, hidden, compared, weights, key, mapped, score, by_state = ctx.saved_tensors
        gates = Gates(*saved)
        (steps, batch, d), h = grad_hidden.shape, key.shape[-1]
        to_given = hidden.new_empty(steps, batch, mapped.shape[-1])
        to_given[..., 3 * d :] = grad_given
        to_by_hidden = hidden.new_empty(steps, batch, 3 * d + h)
        to_scores = torch.empty_like(weights)
        to_key, to_hidden = torch.zeros_like(key), torch.zeros_like(hidden[0])
        for t in reversed(range(steps)):
            straight = gates.backward(
                t, to_hidden + grad_hidden[t], hidden[t], to_given[t], to_by_hidden[t]
            )
            # through what was pooled to the weights and their scores
            to_weights = torch.bmm(mapped, to_given[t].unsqueeze(-1)).squeeze(-1)  # (batch, s)
            inner = (weights[t] * to_weights).sum(-1, keepdim=True)
            torch.mul(weights[t], to_weights.sub_(inner), out=to_scores[t])
            # through tanh to the key and the query
            slope = Additive.slopes(compared[t], score)
            to_key += slope.mul_(to_scores[t].unsqueeze(-1))
            torch.sum(slope, dim=1, out=to_by_hidden[t, :, 3 * d :])
            to_hidden = torch.addmm(straight, to_by_hidden[t], by_state)
        flat = to_by_hidden.flatten(0, 1)
        return (
            to_given,
            to_hidden,
            to_key,
            torch.bmm(weights.permute(1, 2, 0), to_given.transpose(0, 1)),
            None,
            torch.mv(compared.view(-1, h).mT, to_scores.view(-1)),
            flat.mT @ hidden[:-1].flatten(0, 1),
            flat.sum(0),
        )
