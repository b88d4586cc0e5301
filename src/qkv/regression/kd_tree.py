"""Compact kernels in few dimensions: a KD-tree finds the keys within reach, and only they count."""

from __future__ import annotations

import numpy as np
import torch
from scipy.spatial import KDTree

from qkv.operators.sorted.sorted_keys import WeightedMean
from qkv.regression.training_data import Array
from qkv.similarity import CompactKernel, Kernel

#: How many times as long a pair found by the tree takes as one in a fused tile. Measured with 5,000
#: queries on 20,000 even keys and Epanechnikov's kernel on two cores: 170 to 250 in 2 and 3
#: dimensions where 1 to 10 % of the keys are within reach. The tree came out ahead below 0.4 % in
#: 2, below 0.2 % in 3 dimensions. More dimensions were not measured.
PAIR_COST = 250
MOST_DIMENSIONS = 8
PAIRS_AT_ONCE = 2**21
_PROBES = 64


def near_pairs_are_few(kernel: Kernel, query: Array, key: Array) -> bool:
    """Whether so few keys lie within reach of some queries that a tree pays off."""
    if not isinstance(kernel, CompactKernel) or not 2 <= key.shape[1] <= MOST_DIMENSIONS:
        return False
    if len(query) * len(key) < 2**22:
        return False
    unit = _unit(kernel)
    probes = query[:: -(-len(query) // _PROBES)] / unit
    counts = KDTree(key / unit).query_ball_point(probes, 1.0, return_length=True)
    return bool(np.mean(counts) * PAIR_COST < len(key))


def pool(kernel: Kernel, query: Array, key: Array, value: Array) -> WeightedMean:
    """The weighted mean over the keys within reach, in batches of queries: memory stays linear."""
    unit = _unit(kernel)
    tree = KDTree(key / unit)
    scaled = query / unit
    # Slightly wider than the kernel, which then decides about keys at its edge.
    reach = 1 + 1e-9
    counts = tree.query_ball_point(scaled, reach, return_length=True, workers=-1)
    cuts = np.searchsorted(np.cumsum(counts), np.arange(0, counts.sum(), PAIRS_AT_ONCE)[1:])
    answer, log_total = np.zeros((len(query), value.shape[1])), np.full(len(query), -np.inf)
    for rows in np.split(np.arange(len(query)), np.unique(cuts)):
        if rows.size == 0:
            continue
        pairs = KDTree(scaled[rows]).sparse_distance_matrix(tree, reach, output_type="ndarray")
        row, column = pairs["i"], pairs["j"]
        squared = (((query[rows][row] - key[column]) / unit) ** 2).sum(axis=1)
        with torch.no_grad():
            weight = kernel.profile(torch.from_numpy(squared)).numpy()
        total = np.bincount(row, weight, rows.size)
        some = total > 0
        for c in range(value.shape[1]):
            sums = np.bincount(row, weight * value[column, c], rows.size)
            answer[rows[some], c] = sums[some] / total[some]
        log_total[rows[some]] = np.log(total[some])
    return WeightedMean(answer, log_total)


def _unit(kernel: Kernel) -> Array:
    unit = kernel.bandwidth(torch.zeros(1, dtype=torch.float64))
    return np.asarray(unit, dtype=np.float64)
