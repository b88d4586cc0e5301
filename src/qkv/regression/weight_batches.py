"""The weights themselves, a batch of queries at a time, where their sums are not enough."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch

from qkv.memory import TILE_BYTES
from qkv.normalize import normalize
from qkv.regression.adaptive_bandwidth import with_widths
from qkv.regression.categories import log_factor
from qkv.regression.kernels import at
from qkv.regression.training_data import Array, Keys, Places, TrainingData, Width
from qkv.similarity import Kernel
from qkv.similarity.adaptive import Adaptive


def weights(
    examples: TrainingData,
    kernel: Kernel,
    width: Width,
    query: Keys,
    self_index: Places | None = None,
    leave_out: bool = False,
) -> Iterator[tuple[slice, Array, Array]]:
    """Batches of queries, their weights (rows, m) and the log of their totals (rows,).

    `self_index` is the key that each query itself is; with `leave_out` one copy of it is left out.
    """
    m, d = examples.keys.number.shape
    step = max(1, 4 * TILE_BYTES // (8 * m * max(1, d)))
    copies = examples.copies
    for start in range(0, len(query), step):
        rows = slice(start, min(start + step, len(query)))
        itself = None if self_index is None else self_index[rows]
        logs = log_kernels(examples, kernel, width, query.take(rows), itself)
        weight = np.broadcast_to(copies, logs.shape)
        if leave_out:
            weight = weight.copy()
            pairs = np.arange(len(logs)), itself
            weight[pairs] = np.maximum(weight[pairs] - 1, 0)
        with np.errstate(divide="ignore"):
            logs = logs + np.log(weight)
        normalized = normalize(torch.from_numpy(logs), None, may_be_empty=True)
        yield rows, normalized.weights.numpy(), normalized.log_total.numpy()


def log_kernels(
    examples: TrainingData,
    kernel: Kernel,
    width: Width,
    query: Keys,
    self_index: Places | None = None,
) -> Array:
    """log K of every pair, (n, m); -inf where it is 0."""
    logs = log_factor(examples.keys.code, query.code, examples.categories, width.smoothing)
    if examples.keys.number.shape[1] == 0:
        return logs
    if width.neighbors is None and (query.some_missing or examples.keys.some_missing):
        return logs + _log_of_shared(kernel, width, query.number, examples.keys.number)
    similarity, tokens = at(kernel, width.bandwidth), query.number
    if width.neighbors is not None:
        tokens = with_widths(examples, width, query.number, self_index)
        similarity = Adaptive(similarity)
    with torch.no_grad():
        scores = similarity.log_score(
            torch.from_numpy(tokens), torch.from_numpy(examples.keys.number)
        )
    return np.asarray(logs + scores.numpy())


def _log_of_shared(kernel: Kernel, width: Width, query: Array, key: Array) -> Array:
    """log K from the numbers that neither query nor key lacks, scaled up to all; -inf if none."""
    difference = (query[:, None] - key[None]) / width.bandwidth
    shared = (~np.isnan(difference)).sum(axis=-1)
    squared = np.nansum(difference**2, axis=-1) * (key.shape[1] / np.maximum(shared, 1))
    with torch.no_grad():
        logs = kernel.log_profile(torch.from_numpy(squared)).numpy()
    return np.where(shared > 0, logs, -np.inf)
