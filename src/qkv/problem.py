"""One question to the formula, checked: what every operator is handed."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qkv.dropout import Dropout, draw
from qkv.mask import Mask, MaskLike, Tile, as_mask
from qkv.similarity import Similarity, SimilarityLike, as_similarity

Array: TypeAlias = Tensor | npt.NDArray[np.floating[Any]]

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


class Problem(NamedTuple):
    """Queries, keys and values of one dtype on one device, and how they are to be compared."""

    query: Tensor  # (..., n, d_q)
    key: Tensor  # (..., m, d_k)
    value: Tensor  # (..., m, d_v)
    similarity: Similarity
    mask: Mask | None
    bias: Tensor | None  # what the mask adds to the scores, (..., n or 1, m)
    dropout: Dropout | None
    batch: tuple[int, ...]  # the leading axes of query, key and value, broadcast
    wants_total: bool = False  # whether the log of the total weight is asked for too

    @property
    def n(self) -> int:
        return self.query.shape[-2]

    @property
    def m(self) -> int:
        return self.key.shape[-2]

    @property
    def pairs(self) -> int:
        return math.prod(self.batch) * self.n * self.m

    @property
    def dim(self) -> int:
        return max(self.query.shape[-1], self.key.shape[-1])

    @property
    def flops(self) -> int:
        """Work of scoring every pair (a softmax counted as five) and pooling the values."""
        return self.pairs * (self.similarity.pair_flops(self.dim) + 5 + 2 * self.value.shape[-1])

    @property
    def needs_grad(self) -> bool:
        if not torch.is_grad_enabled():
            return False
        tensors = [self.query, self.key, self.value, *self.similarity.parameters()]
        if self.bias is not None:
            tensors.append(self.bias)
        return any(tensor.requires_grad for tensor in tensors)

    def tile(self, start: int, stop: int) -> Tile:
        """The queries `start` to `stop` as masks see them."""
        return Tile(start, stop, self.n, self.m, self.batch, self.query.device)

    def narrow(self, axis: int, start: int, stop: int) -> Problem:
        """The entries `start` to `stop` of the leading axis `axis` alone."""

        def part(tensor: Tensor) -> Tensor:
            own_axis = tensor.ndim - 2 - len(self.batch) + axis
            if own_axis < 0 or tensor.shape[own_axis] == 1:
                return tensor
            return tensor.narrow(own_axis, start, stop - start)

        return self._replace(
            query=part(self.query),
            key=part(self.key),
            value=part(self.value),
            bias=None if self.bias is None else part(self.bias),
            mask=self.mask and self.mask.narrow(axis, start, stop, self.batch),
            dropout=self.dropout and self.dropout.narrow(axis, start, stop),
            batch=(*self.batch[:axis], stop - start, *self.batch[axis + 1 :]),
        )


def pose(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    similarity: SimilarityLike,
    mask: MaskLike | None,
    dropout: float = 0.0,
    wants_total: bool = False,
) -> Problem:
    """Check everything a user can get wrong, and say it in one sentence."""
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        if tensor.ndim < 2:
            raise ValueError(
                f"{name} must have at least two axes, (..., rows, dimensions); "
                f"got shape {tuple(tensor.shape)}"
            )
        if tensor.dtype not in DTYPES:
            raise TypeError(f"{name} must be floating point; got {tensor.dtype}")
        if tensor.dtype != query.dtype:
            raise TypeError(f"{name} must be {query.dtype} to match query; got {tensor.dtype}")
        if tensor.device != query.device:
            raise ValueError(
                f"{name} must be on {query.device} to match query; got {tensor.device}"
            )
    if value.shape[-2] != key.shape[-2]:
        raise ValueError(
            f"value must have shape (..., {key.shape[-2]}, d_v) to match key; "
            f"got {tuple(value.shape)}"
        )
    chosen = as_similarity(similarity)
    chosen.check(query, key)
    batch = _common_batch(query, key, value)
    chosen_mask = None if mask is None else as_mask(mask)
    if chosen_mask is not None:
        chosen_mask.check(batch, query.shape[-2], key.shape[-2])
        for tensor in chosen_mask.tensors():
            if tensor.dtype in (torch.bool, *DTYPES) and tensor.device != query.device:
                raise ValueError(
                    f"mask must be on {query.device} to match query; got {tensor.device}"
                )
    if not 0.0 <= dropout < 1.0:
        raise ValueError(f"dropout must be at least 0 and below 1; got {dropout}")
    drop = draw(dropout, batch, query.shape[-2], query.device) if dropout else None
    bias = None if chosen_mask is None else chosen_mask.bias()
    return Problem(query, key, value, chosen, chosen_mask, bias, drop, batch, wants_total)


def as_tensors(**arrays: Array) -> tuple[list[Tensor], bool]:
    """The named arrays as tensors, and whether they came as NumPy arrays."""
    if all(isinstance(array, Tensor) for array in arrays.values()):
        return list(arrays.values()), False  # type: ignore[arg-type]
    if all(isinstance(array, np.ndarray) for array in arrays.values()):
        return [_from_numpy(name, array) for name, array in arrays.items()], True
    kinds = ", ".join(f"{name} {type(array).__name__}" for name, array in arrays.items())
    raise TypeError(
        f"{', '.join(arrays)} must be all torch tensors or all NumPy arrays; got {kinds}"
    )


def _from_numpy(name: str, array: Any) -> Tensor:
    if array.dtype not in (np.float64, np.float32, np.float16):
        raise TypeError(f"{name} must be floating point; got {array.dtype}")
    array = np.ascontiguousarray(array)  # torch knows no negative strides
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def _common_batch(query: Tensor, key: Tensor, value: Tensor) -> tuple[int, ...]:
    lead = query.shape[:-2]
    if lead == key.shape[:-2] == value.shape[:-2]:
        return tuple(lead)
    try:
        return tuple(torch.broadcast_shapes(lead, key.shape[:-2], value.shape[:-2]))
    except RuntimeError:
        raise ValueError(
            f"the leading axes of query {tuple(query.shape)}, key {tuple(key.shape)} and value "
            f"{tuple(value.shape)} must broadcast"
        ) from None
