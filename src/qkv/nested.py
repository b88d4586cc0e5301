"""Nested (jagged) tensors: sequences of several lengths, packed into one, in and out.

A jagged tensor holds its sequences one after the other, so attention among them is attention over
the packed tokens under :class:`qkv.mask.Documents`: nothing is padded, and nothing is copied.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.mask import Documents, Mask, MaskLike, as_mask


class Packed(NamedTuple):
    """The same question with all sequences one after the other."""

    query: Tensor  # (…, tokens, d_q)
    key: Tensor
    value: Tensor
    mask: Mask


def pack(query: Tensor, key: Tensor, value: Tensor, mask: MaskLike | None) -> Packed:
    """The question about nested tensors (batch, …, ragged, d) as one about their tokens."""
    tokens = _tokens("query", query), _tokens("key", key), _tokens("value", value)
    for name, tensor in (("key", key), ("value", value)):
        if tensor.shape[0] != query.shape[0]:
            raise ValueError(
                f"{name} must hold {query.shape[0]} sequences to match query; got {tensor.shape[0]}"
            )
    of_query, of_key, of_value = (offsets(x) for x in (query, key, value))
    if not _equal(of_key, of_value):
        raise ValueError("value must have the lengths of key; got other lengths")
    alike = _equal(of_query, of_key)
    documents: Mask = Documents.from_offsets(of_query, None if alike else of_key)
    if mask is None:
        return Packed(*tokens, documents)
    given = as_mask(mask)
    limits, _ = given.without_positions()
    nowhere = torch.arange(0)
    if not alike or (limits is not None and limits.allowed_at(nowhere) is None):
        raise ValueError(
            "of nested tensors, mask and bias must depend on the distance of positions alone, as "
            f"Causal and Window do, and query and key have the same lengths; got {given!r}"
        )
    return Packed(*tokens, documents & given)


def nested_like(tokens: Tensor, query: Tensor) -> Tensor:
    """Answers (…, tokens, d_v) as a nested tensor with the sequences of `query`."""
    if tokens.ndim == 3:
        tokens = tokens.transpose(0, 1)  # (tokens, heads, d_v)
    nested: Any = torch.nested
    jagged: Tensor = nested.nested_tensor_from_jagged(tokens, offsets=offsets(query))
    return jagged.transpose(1, 2) if jagged.ndim == 4 else jagged


def offsets(tensor: Tensor) -> Tensor:
    """Where the sequences of a nested tensor start, and the end."""
    nested: Any = tensor
    return nested.offsets()  # type: ignore[no-any-return]


def _equal(left: Tensor, right: Tensor) -> bool:
    return left is right or (left.shape == right.shape and bool((left == right).all()))


def _tokens(name: str, tensor: Tensor) -> Tensor:
    if not tensor.is_nested or tensor.layout != torch.jagged:
        got = "one of strided layout" if tensor.is_nested else "a plain tensor"
        raise TypeError(
            f"query, key and value must all be nested tensors of layout torch.jagged, or none; "
            f"{name} is {got}"
        )
    nested: Any = tensor
    if nested.ndim not in (3, 4) or nested._ragged_idx != nested.ndim - 2:
        raise ValueError(
            f"{name} must have shape (batch, ragged, d) or (batch, heads, ragged, d); "
            f"got {tuple(nested.shape)}"
        )
    if nested.lengths() is not None:
        raise ValueError(f"{name} must have no gaps between its sequences; use contiguous()")
    return nested.values()  # type: ignore[no-any-return]
