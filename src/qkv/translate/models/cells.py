"""The decoder's recurrent cells."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn


class Cell(nn.Module):
    """A recurrent cell whose gates are W_e e + W_c c + W_h h + b for a token e and a context c.

    The first two terms do not depend on the state. They are passed in as `given`.
    """

    def __init__(self, gates: int, hidden: int) -> None:
        super().__init__()
        self.gates = gates * hidden  # the size of what is given
        self.hidden = nn.Linear(hidden, gates * hidden)
        for part in self.hidden.weight.data.chunk(gates):
            nn.init.orthogonal_(part)

    @abstractmethod
    def start(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """The first state; its first part is the hidden state (batch, n, hidden)."""

    @abstractmethod
    def step(self, given: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The next state; the part that others use, the hidden state, comes first."""


class Gru(Cell):
    """h' = (1 − z)·n + z·h with reset and update gates r, z and n = tanh(W_n x + r·(U_n h + b))."""

    def __init__(self, hidden: int) -> None:
        super().__init__(3, hidden)

    def start(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return (hidden,)

    def step(self, given: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (hidden,) = state
        d = hidden.shape[-1]
        by_hidden = self.hidden(hidden)
        reset, update = torch.sigmoid(given[..., : 2 * d] + by_hidden[..., : 2 * d]).chunk(
            2, dim=-1
        )
        new = torch.tanh(torch.addcmul(given[..., 2 * d :], reset, by_hidden[..., 2 * d :]))
        return (torch.lerp(new, hidden, update),)


class Lstm(Cell):
    """c' = f·c + i·g and h' = o·tanh(c'), with gates i, f, o and g = tanh(…)."""

    def __init__(self, hidden: int) -> None:
        super().__init__(4, hidden)

    def start(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return hidden, torch.zeros_like(hidden)

    def step(self, given: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, cell = state
        i, f, g, o = (given + self.hidden(hidden)).chunk(4, dim=-1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(cell), cell


def cell_of(name: Literal["gru", "lstm"], hidden: int) -> Cell:
    """A cell by its name."""
    return {"gru": Gru, "lstm": Lstm}[name](hidden)
