"""The gates of a GRU, and their way back, for all who unroll one by hand.

    r, z = sigmoid(given_rz + asked_rz),   n = tanh(given_n + r·asked_n),   h' = n + z·(h − n),

where `given` is what comes from outside and `asked` what the state itself says, both (…, 3d) or
wider: what else they hold is for others.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Gates(NamedTuple):
    """What the way back needs, with room for all steps: the first axis is time."""

    switches: Tensor  # (t, ..., 2d): reset and update
    own: Tensor  # (t, ..., d): what the reset gate lets through
    new: Tensor  # (t, ..., d): the candidate state

    @classmethod
    def room(cls, like: Tensor) -> Gates:
        """Room for the gates of states like these, (t, …, d)."""
        return cls(
            like.new_empty(*like.shape[:-1], 2 * like.shape[-1]),
            *(torch.empty_like(like) for _ in range(2)),
        )

    def forward(self, t: int, given: Tensor, asked: Tensor, before: Tensor, after: Tensor) -> None:
        """Step t: write the state `after` that follows `before`."""
        d = before.shape[-1]
        switches = torch.add(given[..., : 2 * d], asked[..., : 2 * d], out=self.switches[t])
        switches.sigmoid_()
        own = self.own[t].copy_(asked[..., 2 * d : 3 * d])
        new = torch.addcmul(
            given[..., 2 * d : 3 * d], switches[..., :d], own, out=self.new[t]
        ).tanh_()
        torch.lerp(new, before, switches[..., d:], out=after)

    def backward(
        self, t: int, to_after: Tensor, before: Tensor, to_given: Tensor, to_asked: Tensor
    ) -> Tensor:
        """Step t: write the gradients of given and asked; the part of before's that skips both."""
        d = before.shape[-1]
        reset, update = self.switches[t, ..., :d], self.switches[t, ..., d:]
        new, own = self.new[t], self.own[t]
        straight = to_after * update
        through = to_after - straight  # (1 − z)·to_after
        to_new = torch.addcmul(through, through, new * new, value=-1.0)
        to_given[..., 2 * d : 3 * d] = to_new
        torch.mul(to_new, reset, out=to_asked[..., 2 * d : 3 * d])
        torch.mul(
            to_new.mul_(own), torch.addcmul(reset, reset, reset, value=-1.0), out=to_given[..., :d]
        )
        torch.mul(through.mul_(update), before - new, out=to_given[..., d : 2 * d])
        to_asked[..., : 2 * d] = to_given[..., : 2 * d]
        return straight
