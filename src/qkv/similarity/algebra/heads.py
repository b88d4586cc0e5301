"""Numbers that each head has its own of: how they meet scores."""

from __future__ import annotations

import torch
from torch import Tensor


def over_heads(numbers: Tensor) -> Tensor:
    """(…heads) -> (…heads, 1, 1), fit to meet scores; one number for all stays as it is."""
    return numbers[..., None, None] if numbers.ndim else numbers


def narrow_heads(
    numbers: Tensor, axis: int, start: int, stop: int, batch: tuple[int, ...]
) -> Tensor:
    """Numbers of the entries `start` to `stop` of the leading axis `axis` alone."""
    place = numbers.ndim - len(batch) + axis
    if place < 0 or numbers.shape[place] == 1:
        return numbers
    return numbers.narrow(place, start, stop - start)


def check_heads(name: str, numbers: Tensor, query: Tensor, key: Tensor) -> None:
    """Raise ValueError unless numbers of heads fit the leading axes of query and key."""
    batch = torch.broadcast_shapes(query.shape[:-2], key.shape[:-2])
    shape = tuple(numbers.shape)
    fits = len(shape) <= len(batch) and all(
        size == 1 or size == wanted
        for size, wanted in zip(reversed(shape), reversed(batch), strict=False)
    )
    if not fits:
        raise ValueError(
            f"{name} must be one number or one for each head, to match the leading axes "
            f"{tuple(batch)} of query and key; got shape {shape}"
        )
