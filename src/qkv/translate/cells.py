"""The decoder's recurrent cells: what was read, the context and the last state make the next."""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn


class Cell(nn.Module):
    """A recurrent cell over [token; context], split so that tokens are read ahead of time.

    Its gates are W_e e + W_c c + W_h h + b; the first term needs no state, so :meth:`read` makes
    it for all steps at once.
    """

    def __init__(self, gates: int, embedding: int, context: int, hidden: int) -> None:
        super().__init__()
        self.token = nn.Linear(embedding, gates * hidden)
        self.context = nn.Linear(context, gates * hidden, bias=False)
        self.hidden = nn.Linear(hidden, gates * hidden)
        for weight in (*self.token.parameters(), *self.context.parameters()):
            nn.init.uniform_(weight, -(hidden**-0.5), hidden**-0.5)  # as torch's own cells
        for part in self.hidden.weight.data.chunk(gates):
            nn.init.orthogonal_(part)

    def read(self, embedded: Tensor) -> Tensor:
        """What tokens (…, embedding) say to the gates, (…, gates · hidden)."""
        return self.token(embedded)  # type: ignore[no-any-return]

    @abstractmethod
    def start(self, hidden: Tensor) -> tuple[Tensor, ...]:
        """The first state, of which (batch, n, hidden) is what the world sees."""

    @abstractmethod
    def step(self, read: Tensor, context: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """The next state; what the world sees of it comes first."""


class Gru(Cell):
    """h' = (1 − z)·n + z·h with reset and update gates r, z and n = tanh(W_n x + r·(U_n h + b))."""

    def __init__(self, embedding: int, context: int, hidden: int) -> None:
        super().__init__(3, embedding, context, hidden)

    def start(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return (hidden,)

    def step(self, read: Tensor, context: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        (hidden,) = state
        given = read + self.context(context)
        given_r, given_z, given_n = given.chunk(3, dim=-1)
        own_r, own_z, own_n = self.hidden(hidden).chunk(3, dim=-1)
        reset, update = torch.sigmoid(given_r + own_r), torch.sigmoid(given_z + own_z)
        new = torch.tanh(given_n + reset * own_n)
        return (new + update * (hidden - new),)


class Lstm(Cell):
    """c' = f·c + i·g and h' = o·tanh(c'), with gates i, f, o and g = tanh(…)."""

    def __init__(self, embedding: int, context: int, hidden: int) -> None:
        super().__init__(4, embedding, context, hidden)

    def start(self, hidden: Tensor) -> tuple[Tensor, ...]:
        return hidden, torch.zeros_like(hidden)

    def step(self, read: Tensor, context: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        hidden, cell = state
        gates = read + self.context(context) + self.hidden(hidden)
        i, f, g, o = gates.chunk(4, dim=-1)
        cell = torch.sigmoid(f) * cell + torch.sigmoid(i) * torch.tanh(g)
        return torch.sigmoid(o) * torch.tanh(cell), cell


def cell_of(name: Literal["gru", "lstm"], embedding: int, context: int, hidden: int) -> Cell:
    """A cell by its name."""
    return {"gru": Gru, "lstm": Lstm}[name](embedding, context, hidden)
