"""The interface of a translation model for training and search.

The flow of Eq. 13, for any model: :meth:`Model.encode` reads the source once and returns a memory;
:meth:`Model.step` takes the memory, a state and the last token, and returns the next state and
features of the next token; :meth:`Model.logits` scores the vocabulary. The model itself keeps no
state: decoding can continue from any memory and state, or from copies of them.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Any, Generic, NamedTuple, Protocol, Self, TypeVar

from torch import Tensor, nn

from qkv.translate.data.batches import Batch
from qkv.translate.data.vocabulary import PAD
from qkv.translate.models.loss import smoothed_loss


class Memory(Protocol):
    """The encoded sources of a batch."""

    def select(self, sentences: Tensor) -> Self:
        """The memory of these sentences alone, (b,)."""


class State(Protocol):
    """The state of the decoder: n rows for each sentence, which are n hypotheses."""

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
        """Decode one more token in each row, (batch, n)."""

    @abstractmethod
    def forced(self, memory: MemoryT, tokens: Tensor) -> Tensor:
        """Features (batch, t, r) of all steps under teacher forcing with tokens (batch, t)."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The description of the model, for a checkpoint."""

    def logits(self, features: Tensor) -> Tensor:
        """Scores of the whole vocabulary, (…, r) -> (…, v)."""
        return self.output(features)  # type: ignore[no-any-return]

    def loss(self, batch: Batch, smoothing: float = 0.0) -> Tensor:
        """Cross entropy summed over the target tokens, each softened by `smoothing`."""
        features = self.forced(self.encode(batch.source, batch.lengths), batch.inputs)
        real = batch.labels != PAD
        # The output layer costs most: it is applied to all steps at once, without padding.
        return smoothed_loss(
            features[real], self.output.weight, self.output.bias, batch.labels[real], smoothing
        )
