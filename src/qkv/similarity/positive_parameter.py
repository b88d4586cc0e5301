"""A positive number, or one for each dimension: a bandwidth or a temperature."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Positive(nn.Module):
    """Positive numbers, fixed or learned.

    Fixed ones stay Python floats, exact in every dtype. Learned ones are kept as logarithms, so
    that no step of an optimiser can make them 0 or negative.
    """

    def __init__(
        self, name: str, value: float | Sequence[float] | Tensor, learnable: bool = False
    ) -> None:
        super().__init__()
        self.name = name
        self.size: int | None = None
        self.fixed: float | list[float] | None = None
        self.log: nn.Parameter | None = None
        if isinstance(value, float | int) and not learnable:  # also inside of what is compiled
            self.fixed = _checked(name, float(value))
            return
        if isinstance(value, list | tuple) and _are_numbers(value) and not learnable:
            self.fixed = [_checked(name, float(number)) for number in value]
            self.size = len(value)
            return
        numbers = torch.as_tensor(value, dtype=torch.float64)
        if numbers.ndim > 1 or numbers.numel() == 0:
            raise ValueError(
                f"{name} must be a number or one number for each dimension; "
                f"got shape {tuple(numbers.shape)}"
            )
        for number in numbers.flatten().tolist():
            _checked(name, number)
        self.size = numbers.numel() if numbers.ndim else None
        if learnable:
            self.log = nn.Parameter(numbers.log().to(torch.get_default_dtype()))
        else:
            self.fixed = numbers.tolist()

    def check(self, dim: int) -> None:
        if self.size not in (None, 1, dim):
            raise ValueError(
                f"{self.name} has {self.size} entries, one for each dimension; key has {dim}"
            )

    def forward(self, like: Tensor) -> float | Tensor:
        """The value, fit to divide a tensor such as `like` by; of half types in float32."""
        if self.log is None and isinstance(self.fixed, float):
            return self.fixed
        dtype = torch.promote_types(like.dtype, torch.float32)
        if self.log is not None:
            return self.log.exp().to(dtype)
        return torch.tensor(self.fixed, dtype=dtype, device=like.device)

    def tensors(self) -> tuple[Tensor, ...]:
        return () if self.log is None else (self.log,)

    def extra_repr(self) -> str:
        if self.log is not None:
            return f"{self.log.detach().exp().tolist()}, learnable=True"
        return f"{self.fixed}"


def _checked(name: str, number: float) -> float:
    if not (number > 0 and math.isfinite(number)):
        raise ValueError(f"{name} must be positive and finite; got {number}")
    return number


def _are_numbers(values: Sequence[object]) -> bool:
    return len(values) > 0 and all(isinstance(value, float | int) for value in values)
