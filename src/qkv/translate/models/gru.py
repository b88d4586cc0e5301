"""The gates of a GRU, forward and backward, for unrolling by hand.

    r, z = sigmoid(given_rz + state_rz),   n = tanh(given_n + r·state_n),   h' = n + z·(h − n),

where `given` is the linear map of the inputs and `by_hidden` that of the state, both (…, 3d) or
wider, with further columns that are ignored.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Gates(NamedTuple):
    """Activations for the backward pass, preallocated for all steps: the first axis is time."""

    switches: Tensor  # (t, ..., 2d): reset and update
    recurrent: Tensor  # (t, ..., d): what the reset gate lets through
    new: Tensor  # (t, ..., d): the candidate state

    @classmethod
    def room(cls, like: Tensor) -> Gates:
        """Uninitialised gates for states like these, (t, …, d)."""
        return cls(
            like.new_empty(*like.shape[:-1], 2 * like.shape[-1]),
            *(torch.empty_like(like) for _ in range(2)),
        )

    def forward(
        self, t: int, given: Tensor, by_hidden: Tensor, before: Tensor, after: Tensor
    ) -> None:
        """Step t: write the state `after` that follows `before`."""
        d = before.shape[-1]
        switches = torch.add(given[..., : 2 * d], by_hidden[..., : 2 * d], out=self.switches[t])
        switches.sigmoid_()
        recurrent = self.recurrent[t].copy_(by_hidden[..., 2 * d : 3 * d])
        new = torch.addcmul(
            given[..., 2 * d : 3 * d], switches[..., :d], recurrent, out=self.new[t]
        ).tanh_()
        torch.lerp(new, before, switches[..., d:], out=after)

    def backward(
        self, t: int, to_after: Tensor, before: Tensor, to_given: Tensor, to_by_hidden: Tensor
    ) -> Tensor:
        """Step t: write the gradients of both maps; return the part of before's that skips both."""
        d = before.shape[-1]
        reset, update = self.switches[t, ..., :d], self.switches[t, ..., d:]
        new, recurrent = self.new[t], self.recurrent[t]
        straight = to_after * update
        through = to_after - straight  # (1 − z)·to_after
        to_new = torch.addcmul(through, through, new * new, value=-1.0)
        to_given[..., 2 * d : 3 * d] = to_new
        torch.mul(to_new, reset, out=to_by_hidden[..., 2 * d : 3 * d])
        torch.mul(
            to_new.mul_(recurrent),
            torch.addcmul(reset, reset, reset, value=-1.0),
            out=to_given[..., :d],
        )
        torch.mul(through.mul_(update), before - new, out=to_given[..., d : 2 * d])
        to_by_hidden[..., : 2 * d] = to_given[..., : 2 * d]
        return straight
