"""Numbers that each head has its own of: how they meet scores."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.broadcast import broadcasts_to


def over_heads(numbers: Tensor) -> Tensor:
    """(…heads) -> (…heads, 1, 1), fit to meet scores; one number for all stays as it is."""
    return numbers[..., None, None] if numbers.ndim else numbers


def check_heads(name: str, numbers: Tensor, query: Tensor, key: Tensor) -> None:
    """Raise ValueError unless numbers of heads fit the leading axes of query and key."""
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    if not broadcasts_to(numbers.shape, batch):
        raise ValueError(
            f"{name} must be one number or one for each head, to match the leading axes "
            f"{tuple(batch)} of query and key; got shape {tuple(numbers.shape)}"
        )
