"""Users' kernels as the inner loop calls them: compiled from their formulas."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from qkv.formula import PROGRAMS
from qkv.formula.compiled import tile_function
from qkv.formula.forms import form
from qkv.jit.kernels import UnavailableError, warn_once
from qkv.similarity import Kernel


class Derived(NamedTuple):
    """A tile function, see `operators/fused/inputs.py`, of keys that are numbers."""

    address: int
    parameter: np.ndarray


NONE = Derived(0, np.empty(0))


def in_logs(kernel: Kernel) -> bool:
    """Whether a kernel's logarithm is more accurate than the kernel itself."""
    return type(kernel).log_profile is not Kernel.log_profile


def derived_kernel(kernel: Kernel, inverse: float) -> Derived:
    """The kernel of (query - key) * inverse, compiled; NONE if its formula cannot be compiled."""
    # A tensor, so that it becomes an entry of the parameter and not an instruction.
    scale = torch.tensor(inverse, dtype=torch.float64)

    def weigh(query: Tensor, key: Tensor) -> Tensor:
        difference = (query[:, 0, None] - key[None, :, 0]) * scale
        if in_logs(kernel):
            return kernel.log_profile(difference.square())
        return kernel.at_distance(difference.abs())

    query, key = torch.zeros(2, 1, dtype=torch.float64), torch.zeros(3, 1, dtype=torch.float64)
    with torch.no_grad():
        traced = form(weigh, kernel.formula, query, key, not in_logs(kernel))
    if isinstance(traced, str):
        return NONE
    try:
        address = tile_function(PROGRAMS[traced.kind], "scores").address("float64")
    except UnavailableError as reason:
        warn_once(str(reason))
        return NONE
    return Derived(address, traced.parameter.numpy())
