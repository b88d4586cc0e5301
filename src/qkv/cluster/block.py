"""What a block of keys says to a block of queries, forwards and backwards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.autograd_leaves import leaves_behind
from qkv.bias import PositionBias, ShardBias
from qkv.dropout import Dropout
from qkv.mask import Mask, NothingVisible, Shard, mask_of_shard
from qkv.partial import Partial
from qkv.pooling import answer_partial
from qkv.problem import validate
from qkv.similarity import Similarity


class Question(NamedTuple):
    """How queries and keys of the whole are compared: n queries, m keys."""

    similarity: Similarity
    mask: Mask | None
    bias: PositionBias | None
    rate: float
    row_keys: Tensor | None  # (*batch, n), int32, where weights are dropped
    batch: tuple[int, ...]
    n: int
    m: int

    def partial(
        self, query: Tensor, key: Tensor, value: Tensor, query_at: int, key_at: int
    ) -> Partial | None:
        """What these keys say; None where no query may see one of them."""
        queries, keys = query.shape[-2], key.shape[-2]
        if queries == 0 or keys == 0:
            return None
        shard = Shard(query_at, queries, key_at, keys, self.n, self.m)
        mask = mask_of_shard(self.mask, shard, self.batch, query.device)
        if isinstance(mask, NothingVisible):
            return None
        if self.bias is not None:
            bias = ShardBias(self.bias, shard)
            mask = bias if mask is None else mask & bias
        problem = validate(query, key, value, self.similarity, mask, wants_total=True)
        if self.row_keys is None:
            return answer_partial(problem)
        rows = self.row_keys[..., query_at : query_at + queries]
        drop = Dropout(self.rate, rows, key_at)
        # Compiled kernels count the keys of this block from 0 in what they drop.
        return answer_partial(problem._replace(dropout=drop, checked=None), "streamed")

    def nothing(self, value: Tensor, queries: int) -> Partial:
        """What no keys at all say."""
        shape = (*self.batch, queries)
        dtype = torch.promote_types(value.dtype, torch.float32)
        total = torch.full(shape, -torch.inf, dtype=dtype, device=value.device)
        return Partial(value.new_zeros(*shape, value.shape[-1]), total)

    def leaves(self, query: Tensor, key: Tensor) -> list[Tensor]:
        """What is learned beside queries, keys and values, in the same order on every rank."""
        with torch.enable_grad():
            one = query.detach().new_zeros(1, query.shape[-1])
            other = key.detach().new_zeros(1, key.shape[-1])
            outcomes = [self.similarity.log_score(*self.similarity.prepare(one, other))]
            if self.bias is not None:
                position = torch.zeros(1, 1, dtype=torch.int64, device=query.device)
                outcomes.append(self.bias(position, position[0]))
            added = None if self.mask is None else self.mask.bias()
            if added is not None:
                outcomes.append(added.view_as(added))  # a leaf itself has no graph
        return list({id(leaf): leaf for leaf in leaves_behind(outcomes)}.values())


class Answered(NamedTuple):
    """The answer over all keys, its total, and the gradient that came back for it."""

    answer: Tensor  # (*batch, n, d_v)
    log_total: Tensor  # (*batch, n)
    gradient: Tensor

    def rows(self, start: int, stop: int) -> Answered:
        return Answered(
            self.answer[..., start:stop, :],
            self.log_total[..., start:stop],
            self.gradient[..., start:stop, :],
        )


def gradients(
    question: Question,
    tokens: tuple[Tensor, Tensor, Tensor],
    at: tuple[int, int],
    answered: Answered,
    leaves: Sequence[Tensor],
) -> list[Tensor | None] | None:
    """The gradients of query, key, value and leaves by way of this block; None where it is hidden.

    The answer is Σ wᵣ aᵣ over blocks r, with weights wᵣ = exp(lᵣ − l) by the totals: so aᵣ gets
    wᵣ g and lᵣ gets wᵣ g·(aᵣ − a). The block is computed once more for its own part of the graph.
    """
    with torch.enable_grad():
        stand_ins = [token.detach().requires_grad_() for token in tokens]
        partial = question.partial(stand_ins[0], stand_ins[1], stand_ins[2], *at)
    if partial is None:
        return None
    answer, log_total = partial.answer.detach(), partial.log_total.detach()
    empty = answered.log_total == -torch.inf
    weight = torch.where(empty, 0.0, torch.exp(log_total - answered.log_total)).unsqueeze(-1)
    wide = answered.gradient.to(weight.dtype)
    of_answer = (weight * wide).to(answer.dtype)
    of_total = (weight * wide * (answer - answered.answer).to(weight.dtype)).sum(-1)
    grads = torch.autograd.grad(
        [partial.answer, partial.log_total],
        [*stand_ins, *leaves],
        [of_answer, of_total.to(log_total.dtype)],
        allow_unused=True,
        retain_graph=len(leaves) > 0,  # the graph behind a leaf's users is not ours alone
    )
    return list(grads)
