"""What a translation model is to training and search: it remembers, and goes on step by step.

The flow of Eq. 13, for whatever model: :meth:`Model.encode` reads the source once and gives a
memory; :meth:`Model.step` takes the memory, a state and the last token, and gives the next state
and features of the next token; :meth:`Model.logits` scores the vocabulary. Nothing is hidden in
the model: who holds a memory and a state can go on from there, or from a copy.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from torch import Tensor, nn

from qkv.translate.data.batches import Batch
from qkv.translate.data.vocabulary import PAD
from qkv.translate.models.loss import smoothed_loss


class Memory(Protocol):
    """What is remembered of a batch of sources, made once."""

    def select(self, sentences: Tensor) -> Self:
        """The memory of these sentences alone, (b,)."""


class State(Protocol):
    """Where the decoder stands: n rows for each sentence, which are n ways to go on."""

    def select(self, sentences: Tensor, rows: Tensor) -> Self:
        """For each of the sentences (b,), the states of these of its rows (b, n)."""


MemoryT = TypeVar("MemoryT", bound=Memory)
StateT = TypeVar("StateT", bound=State)


class Step(NamedTuple, Generic[StateT]):
    features: Tensor  # (batch, n, r): what the next token is predicted from
    state: StateT
    weights: Tensor  # (batch, n, s): how much each source token was looked at


class Model(nn.Module, Generic[MemoryT, StateT]):
    """A sequence-to-sequence model: source tokens in, features of target tokens out."""

    output: nn.Linear

    @abstractmethod
    def encode(self, source: Tensor, lengths: Tensor) -> MemoryT:
        """Read sources (batch, s) of these lengths (batch,)."""

    @abstractmethod
    def start(self, memory: MemoryT) -> StateT:
        """The state before the first token, one row for each sentence."""

    @abstractmethod
    def step(self, memory: MemoryT, state: StateT, tokens: Tensor) -> Step[StateT]:
        """Go on by one token in each row, (batch, n)."""

    @abstractmethod
    def forced(self, memory: MemoryT, tokens: Tensor) -> Tensor:
        """Features (batch, t, r) of all steps when these tokens (batch, t) are read."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """What the model is made of, for a checkpoint."""

    def logits(self, features: Tensor) -> Tensor:
        """Scores of the whole vocabulary, (…, r) -> (…, v)."""
        return self.output(features)  # type: ignore[no-any-return]

    def loss(self, batch: Batch, smoothing: float = 0.0) -> Tensor:
        """Cross entropy summed over the target tokens, each softened by `smoothing`."""
        features = self.forced(self.encode(batch.source, batch.lengths), batch.read)
        real = batch.wanted != PAD
        # The output layer is the dearest: it sees all steps at once, and real tokens only.
        return smoothed_loss(
            features[real], self.output.weight, self.output.bias, batch.wanted[real], smoothing
        )
