"""Which tensors the compiled loops of this package take; for others torch does the work."""

from __future__ import annotations

import torch
from torch import Tensor


def known_to_kernels(tensor: Tensor) -> bool:
    """Whether it lies in the memory of the CPU, in a type that kernels are compiled for."""
    return tensor.device.type == "cpu" and tensor.dtype in (torch.float32, torch.float64)
