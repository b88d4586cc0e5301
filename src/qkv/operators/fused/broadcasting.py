"""How operands with broadcast leading axes are laid out for the kernels.

A kernel sees a flat batch. Each operand keeps its own, smaller batch without copies, and an index
says which of its entries serves which entry of the flat batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

Integers = npt.NDArray[np.int64]
Lead = tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """Which entry of each operand serves which entry of the batch, (operands, size).

    `inputs` are query, key and value, `masks` intervals, mask and bias, `gradients` those of query,
    key, value and bias; `order` lists the batch so that entries that share a gradient are a group.
    """

    size: int
    inputs: Tensor
    masks: Tensor
    gradients: Tensor
    order: Tensor
    group_start: Tensor


def _groups(index: Integers) -> tuple[Integers, Integers]:
    """Batch entries that share an entry of any operand, directly or through others, together."""
    label = np.arange(index.shape[1])
    while True:
        before = label
        for row in index:
            lowest = np.full(int(row.max(initial=0)) + 1, index.shape[1])
            np.minimum.at(lowest, row, label)
            label = lowest[row]
        if np.array_equal(before, label):
            break
    order = np.argsort(label, kind="stable")
    changes = np.flatnonzero(np.diff(label[order])) + 1
    start = np.concatenate(([0], changes, [len(label)])) if len(label) else np.zeros(1)
    return order.astype(np.int64), start.astype(np.int64)


@lru_cache(maxsize=256)
def layout(batch: Lead, *leads: Lead) -> Layout:
    """The layout of operands with these leading shapes in a batch of this shape.

    The operands are query, key, value, intervals, mask and bias, then the gradients of query,
    key, value and bias, which decide on the groups.
    """
    rows = []
    for lead in leads:
        entries = np.arange(math.prod(lead), dtype=np.int64).reshape(lead)
        rows.append(np.broadcast_to(entries, batch).reshape(-1))
    index = np.stack(rows)
    parts = (index[:3], index[3:6], index[6:], *_groups(index[6:]))
    return Layout(math.prod(batch), *(torch.from_numpy(array) for array in parts))


def drop_expanded(tensor: Tensor, kept: int) -> Tensor:
    """The same numbers, every expanded axis (stride 0) but the last `kept` shrunk to size 1."""
    for axis in range(tensor.dim() - kept):
        if tensor.stride(axis) == 0 and tensor.shape[axis] > 1:
            tensor = tensor.narrow(axis, 0, 1)
    return tensor
