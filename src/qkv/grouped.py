"""Heads of queries that share one head of keys and values, which is never copied for them.

Heads h · groups, … of the queries share key head h, as in PyTorch's `enable_gqa`. A question about
them is put in one of three ways:

- where all queries may see the same keys, a group's queries are so many rows of one head;
- where heads are told apart neither by mask nor by similarity, keys broadcast along an axis;
- else each key head is asked about on its own.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from qkv.mask import Mask
from qkv.similarity import Similarity


class Question(NamedTuple):
    """Queries, keys and values whose leading axes broadcast, as :func:`qkv.attend` takes them."""

    query: Tensor
    key: Tensor
    value: Tensor
    similarity: Similarity
    mask: Mask | None


def questions(
    query: Tensor,  # (…, heads, n, d_q)
    key: Tensor,  # (…, key heads, m, d_k)
    value: Tensor,  # (…, key heads, m, d_v)
    similarity: Similarity,
    mask: Mask | None,
    dropout: float,
) -> list[Question]:
    """What to ask, in one question if that is possible, else in one for each key head."""
    check(query, key, value)
    lead, heads, key_heads = _lead(query, key, value), query.shape[-3], key.shape[-3]
    if heads == key_heads:
        return [Question(query, key, value, similarity, mask)]
    if mask is not None:
        mask.check((*lead, heads), query.shape[-2], key.shape[-2])
    sees_alike = mask is None or not (mask.per_query or mask.needs_scores)
    if sees_alike and not dropout and _are_alike(similarity, mask, len(lead)):
        rows = query.unflatten(-3, (key_heads, -1)).flatten(-3, -2)
        return [Question(rows, key, value, similarity, mask)]
    return by_key_head(query, key, value, similarity, mask)


def by_key_head(
    query: Tensor, key: Tensor, value: Tensor, similarity: Similarity, mask: Mask | None
) -> list[Question]:
    """The same, a query staying a query: `mask` may be over more keys than these."""
    lead, heads, key_heads = _lead(query, key, value), query.shape[-3], key.shape[-3]
    batch, axis, groups = (*lead, heads), len(lead), heads // key_heads
    if _are_alike(similarity, mask, axis):
        shared = None if mask is None else mask.for_shared_heads(axis)
        split = query.unflatten(-3, (key_heads, groups))
        return [Question(split, key.unsqueeze(-3), value.unsqueeze(-3), similarity, shared)]
    return [
        Question(
            query.narrow(-3, start, groups),
            key.narrow(-3, head, 1),
            value.narrow(-3, head, 1),
            similarity.narrow(axis, start, start + groups, batch),
            mask and mask.narrow(axis, start, start + groups, batch),
        )
        for head, start in enumerate(range(0, heads, groups))
    ]


def _are_alike(similarity: Similarity, mask: Mask | None, axis: int) -> bool:
    """Whether heads, the batch axis `axis`, are told apart neither by similarity nor by mask."""
    return not similarity.per_head and (mask is None or mask.for_shared_heads(axis) is not None)


def joined(answers: list[Tensor], tokens: tuple[Tensor, ...], *columns: int) -> Tensor:
    """The answers to the questions about query, key and value as one, (…, heads, n, *columns)."""
    if len(answers) > 1:
        return torch.cat(answers, dim=-2 - len(columns))
    # Rows of one head, or an axis of groups: the order of heads and queries is the same.
    return answers[0].reshape(*_lead(*tokens), *tokens[0].shape[-3:-1], *columns)


def _lead(*tokens: Tensor) -> tuple[int, ...]:
    """The axes before those of heads."""
    return tuple(torch.broadcast_shapes(*(x.shape[:-3] for x in tokens)))


def for_every_head(tensor: Tensor, heads: int) -> Tensor:
    """(…, key heads, m, d) -> (…, heads, m, d): a copy, for who wants to see each head's own."""
    if tensor.shape[-3] == heads:
        return tensor
    return tensor.repeat_interleave(heads // tensor.shape[-3], dim=-3)


def check(query: Tensor, key: Tensor, value: Tensor) -> None:
    """Raise ValueError unless the heads of query can share those of key and value."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.ndim < 3:
            raise ValueError(
                f"with enable_gqa, {name} must have shape (..., heads, rows, dimensions); "
                f"got {tuple(tensor.shape)}"
            )
    heads, key_heads = query.shape[-3], key.shape[-3]
    if value.shape[-3] != key_heads:
        raise ValueError(
            f"with enable_gqa, value must have the {key_heads} heads of key; "
            f"got {tuple(value.shape)}"
        )
    if key_heads < 1 or heads % key_heads:
        raise ValueError(
            f"with enable_gqa, the heads of query must be a multiple of those of key; "
            f"got {heads} and {key_heads}"
        )
