"""What the decoder of the recurrent translator looks at."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class EncoderMemory(NamedTuple):
    """The encoder's states, made ready to be compared."""

    key: Tensor  # (batch, s, p), prepared by the similarity
    mapped: Tensor  # (batch, s, g): the values, as the cell and the readout take them
    allowed: Tensor  # (batch, 1, s)
    summary: Tensor  # (batch, c): the last state of either direction

    def select(self, sentences: Tensor) -> EncoderMemory:
        return EncoderMemory(*(part[sentences] for part in self))
