"""Tensors that broadcast: whether they fit a shape, and what some of its entries or rows have.

An axis of size 1 stands for all sizes, and axes that are missing in front for any.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


def broadcasts_to(shape: Sequence[int], wanted: Sequence[int]) -> bool:
    """Whether a tensor of this shape broadcasts to the one that is wanted."""
    return len(shape) <= len(wanted) and all(
        size == 1 or size == other
        for size, other in zip(reversed(shape), reversed(wanted), strict=False)
    )


def query_rows(tensor: Tensor, start: int, stop: int) -> Tensor:
    """What of a tensor over (…, n, m) belongs to the queries `start` to `stop`."""
    return tensor if tensor.shape[-2] == 1 else tensor[..., start:stop, :]


def batch_entries(
    tensor: Tensor, axis: int, start: int, stop: int, batch: Sequence[int], trailing: int = 2
) -> Tensor:
    """What of a tensor over (*batch, …) belongs to the entries `start` to `stop` of a batch axis.

    The tensor has `trailing` axes that are none of the batch, as queries and keys have two.
    """
    place = tensor.ndim - trailing - len(batch) + axis
    if place < 0 or tensor.shape[place] == 1:
        return tensor
    return tensor.narrow(place, start, stop - start)
