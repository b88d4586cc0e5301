"""Queries that every rank has, over keys that each rank has some of."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from qkv.cluster.block import Answered, Question, gradients
from qkv.cluster.exchange import Exchange
from qkv.partial import Partial


class Replicated:
    """Each rank asks its own keys; answers are summed by weight. Two all-reduces each way."""

    def __init__(self, question: Question, exchange: Exchange, first_key: int) -> None:
        self.question, self._exchange, self._first_key = question, exchange, first_key

    def forward(self, query: Tensor, key: Tensor, value: Tensor) -> Partial:
        """The answer over the keys of all ranks, the same on each."""
        partial = self.question.partial(query, key, value, 0, self._first_key)
        if partial is None:
            partial = self.question.nothing(value, query.shape[-2])
        peak = self._exchange.max(partial.log_total.clone(memory_format=torch.contiguous_format))
        safe = torch.where(peak == -torch.inf, 0.0, peak)
        weight = torch.exp(partial.log_total - safe).unsqueeze(-1)
        both = torch.cat([partial.answer.to(weight.dtype) * weight, weight], -1).contiguous()
        answer, total = self._exchange.sum(both).split([value.shape[-1], 1], -1)
        empty = total == 0
        answer = torch.where(empty, 0.0, answer / torch.where(empty, 1.0, total))
        return Partial(answer.to(value.dtype), torch.log(total.squeeze(-1)) + safe)

    def backward(
        self,
        tokens: tuple[Tensor, Tensor, Tensor],
        answered: Answered,
        leaves: Sequence[Tensor],
    ) -> list[Tensor | None]:
        """Each rank's own of its keys and values; of what all ranks have, the sum over ranks."""
        grads = gradients(self.question, tokens, (0, self._first_key), answered, leaves)
        _, key, value = tokens
        if grads is None:
            grads = [None] * (3 + len(leaves))
        shared = [
            torch.zeros_like(own) if grad is None else grad.contiguous().clone()
            for own, grad in zip([tokens[0], *leaves], [grads[0], *grads[3:]], strict=True)
        ]
        for grad in shared:
            self._exchange.sum(grad)
        own = [
            torch.zeros_like(token) if grad is None else grad
            for token, grad in zip((key, value), grads[1:3], strict=True)
        ]
        return [shared[0], *own, *shared[1:]]
