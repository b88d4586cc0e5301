"""What stands between the decoder's state and the output layer; narrow, as that one is wide."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn


class Maxout(nn.Module):
    """The larger of two linear maps, feature by feature: max(W₁x + b₁, W₂x + b₂)."""

    def __init__(self, size: int, features: int) -> None:
        super().__init__()
        self.maps = nn.Linear(size, 2 * features)

    def forward(self, x: Tensor) -> Tensor:
        left, right = self.maps(x).chunk(2, dim=-1)
        return torch.maximum(left, right)


class Tanh(nn.Module):
    """tanh(Wx + b)."""

    def __init__(self, size: int, features: int) -> None:
        super().__init__()
        self.map = nn.Linear(size, features)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.map(x))


def readout_of(name: Literal["maxout", "tanh"], size: int, features: int) -> nn.Module:
    """A readout by its name."""
    kinds = {"maxout": Maxout, "tanh": Tanh}
    if name not in kinds:
        raise ValueError(f"readout must be one of {', '.join(kinds)}; got {name!r}")
    return kinds[name](size, features)
