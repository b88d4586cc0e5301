"""FlexAttention: dot products that a function changes by position."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from qkv.mask import Function, Mask
from qkv.similarity import FromCallable, ScaledDot, Similarity


def is_flex_attention(function: Any) -> bool:
    return type(function).__name__ == "FlexAttentionHOP"


def read(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    score_mod: Callable[..., Tensor],
    block_mask: tuple[Any, ...],
    scale: float,
    *options: Any,
) -> tuple[Tensor, Tensor, Similarity, Mask | None]:
    """Query, key, similarity and mask of a call. Tokens are given their positions to carry along,
    so that what the function adds is a similarity like any other."""
    n, m = query.shape[-2], key.shape[-2]
    mask = _mask(block_mask[-1], m - n)
    if getattr(score_mod, "__name__", "") == "_identity":
        return query, key, ScaledDot(scale), mask
    key = key.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
    asking, asked = _with_places(query), _with_places(key)

    def score(query: Tensor, key: Tensor) -> Tensor:
        d = query.shape[-1] - 3
        products = query[..., :d] @ key[..., :d].mT * scale
        entry, head, row = (x.long().unsqueeze(-1) for x in query[..., d:].unbind(-1))
        return score_mod(products, entry, head, row, key[..., -1].long().unsqueeze(-2))

    return asking, asked, FromCallable(score), mask


def _mask(rule: Callable[..., Tensor], shift: int) -> Mask | None:
    """FlexAttention counts queries from 0, masks by their place among the keys."""
    if rule is None or getattr(rule, "__name__", "") == "noop_mask":
        return None
    if shift == 0 and len(inspect.signature(rule).parameters) == 4:
        return Function(rule)
    return Function(lambda entry, head, query, key: rule(entry, head, query - shift, key))


def _with_places(tokens: Tensor) -> Tensor:
    """(batch, heads, n, d) -> (batch, heads, n, d + 3): beside each token where it stands."""
    places = torch.meshgrid(
        *(torch.arange(size, device=tokens.device) for size in tokens.shape[:3]), indexing="ij"
    )
    return torch.cat([tokens, torch.stack(places, -1).to(tokens.dtype)], dim=-1)
