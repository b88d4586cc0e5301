"""The layer between the decoder's state and the output layer."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn


class Readout(nn.Module):
    """Features of sums W_h h + W_e e + W_c c + b over a state h, a token e and a context c.

    Only the first term is this layer's own: as with a cell, the others are given.
    """

    def __init__(self, hidden: int, sums: int) -> None:
        super().__init__()
        self.sums = sums  # the size of what is given
        self.hidden = nn.Linear(hidden, sums, bias=False)

    def forward(self, given: Tensor, hidden: Tensor) -> Tensor:
        return self.features(given + self.hidden(hidden))

    @abstractmethod
    def features(self, sums: Tensor) -> Tensor:
        """The features for the output layer."""


class Maxout(Readout):
    """The larger of two linear maps, feature by feature."""

    def __init__(self, hidden: int, features: int) -> None:
        super().__init__(hidden, 2 * features)

    def features(self, sums: Tensor) -> Tensor:
        return torch.maximum(*sums.chunk(2, dim=-1))


class Tanh(Readout):
    """The tanh of a linear map."""

    def features(self, sums: Tensor) -> Tensor:
        return torch.tanh(sums)


def readout_of(name: Literal["maxout", "tanh"], hidden: int, features: int) -> Readout:
    """A readout by its name."""
    kinds = {"maxout": Maxout, "tanh": Tanh}
    if name not in kinds:
        raise ValueError(f"readout must be one of {', '.join(kinds)}; got {name!r:.80}")
    return kinds[name](hidden, features)
