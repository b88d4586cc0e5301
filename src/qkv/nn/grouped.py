"""Heads of queries that share one of keys, asked together where nothing tells them apart."""

from __future__ import annotations

from torch import Tensor
from torch.overrides import has_torch_function_variadic

from qkv.mask import Allowed, Lengths, Mask


def may_share(mask: Mask | None, query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether several heads of queries share one of keys, and all may see the same of them.

    Then they are so many rows of one head, and neither keys nor values are repeated for them: a
    decoder's step would else copy the whole cache. Who watches is shown heads as heads.
    """
    if query.shape[1] == key.shape[1] or has_torch_function_variadic(query, key, value):
        return False
    if mask is None:
        return True
    if isinstance(mask, Lengths):
        return mask.lengths.ndim < 2
    if isinstance(mask, Allowed):
        tensor = mask.tensor
        return tensor.shape[-2] == 1 and (tensor.ndim < 3 or tensor.shape[-3] == 1)
    return False


def rows_of(query: Tensor, key: Tensor) -> Tensor:
    """(batch, heads, n, d) -> (batch, key heads, heads / key heads · n, d)."""
    rows: Tensor = query.unflatten(1, (key.shape[1], -1)).flatten(2, 3)
    return rows


def heads_of(rows: Tensor, query: Tensor) -> Tensor:
    """(batch, key heads, …, d_v) -> (batch, heads, n, d_v), as the queries are."""
    return rows.reshape(*query.shape[:3], rows.shape[-1])
