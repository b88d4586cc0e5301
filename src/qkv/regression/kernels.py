"""Kernels by name or by similarity, at any bandwidth."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from qkv.regression.training_data import Array
from qkv.similarity import NAMED, Kernel, OfDistance, Similarity

KernelLike: TypeAlias = str | Kernel | Callable[[Tensor], Tensor]

NAMES = [name for name, similarity in NAMED.items() if isinstance(similarity, Kernel)]


def as_kernel(kernel: Any) -> Kernel:
    """The kernel that `kernel` stands for: a name, a similarity whose shape is taken, or a function
    of the distance in bandwidths."""
    if isinstance(kernel, Kernel):
        return kernel
    if isinstance(kernel, str) and kernel in NAMES:
        named = NAMED[kernel]
        assert isinstance(named, Kernel)
        return named
    if callable(kernel) and not isinstance(kernel, (Similarity, type)):
        return OfDistance(kernel)
    raise ValueError(
        f"kernel must be one of {', '.join(NAMES)}, a qkv.Kernel or a function of the distance in "
        f"bandwidths; got {kernel!r}"
    )


def at(kernel: Kernel, bandwidth: Array) -> Kernel:
    """The same kernel at another bandwidth, one number for each dimension."""
    if bandwidth.size == 0:  # nothing to measure a distance by
        return kernel
    return kernel.with_bandwidth(bandwidth.tolist())


def height(kernel: Kernel) -> float:
    """K(0), the weight of a key that equals the query."""
    with torch.no_grad():
        return float(kernel.profile(torch.zeros(1, dtype=torch.float64)))


def spread(kernel: Kernel) -> float:
    """The standard deviation of a kernel as a density on the line; that of the Gaussian is 1.

    Kernels whose bandwidths are divided by it have the same effective width.
    """
    u = torch.linspace(0, 60, 20_001, dtype=torch.float64)
    with torch.no_grad():
        density = kernel.profile(u * u).numpy()
    return float(np.sqrt((density * u.numpy() ** 2).sum() / density.sum()))
