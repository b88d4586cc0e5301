"""A half-finished answer: what some of the keys say, ready to be merged with what others say."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Partial(NamedTuple):
    """The answer over some keys, and the logarithm of their total unnormalised weight.

    :meth:`merge` is associative and commutative up to rounding, and :meth:`nothing` is its
    neutral element, so keys may be split anyhow: over tiles, files, machines or time.

    >>> import torch, qkv
    >>> query, key, value = torch.randn(2, 5), torch.randn(7, 5), torch.randn(7, 3)
    >>> left = qkv.attend_partial(query, key[:4], value[:4])
    >>> right = qkv.attend_partial(query, key[4:], value[4:])
    >>> torch.allclose(left.merge(right).answer, qkv.attend(query, key, value), atol=1e-6)
    True
    """

    answer: Tensor  # (..., n, d_v); 0 where there was nothing to attend to
    log_total: Tensor  # (..., n); -inf where there was nothing to attend to

    @classmethod
    def nothing(cls, like: Partial) -> Partial:
        """The answer over no keys at all, shaped as `like`."""
        return cls(torch.zeros_like(like.answer), torch.full_like(like.log_total, -torch.inf))

    def merge(self, other: Partial) -> Partial:
        """The answer over the keys of both."""
        peak = torch.maximum(self.log_total, other.log_total).detach()
        # Where both are empty the shift would be -inf - -inf.
        peak = torch.where(peak == -torch.inf, 0.0, peak)
        own, others = torch.exp(self.log_total - peak), torch.exp(other.log_total - peak)
        total = own + others
        empty = total == 0
        safe_total = torch.where(empty, 1.0, total)
        answer = self.answer * (own / safe_total).unsqueeze(-1).to(
            self.answer.dtype
        ) + other.answer * (others / safe_total).unsqueeze(-1).to(other.answer.dtype)
        return Partial(answer, torch.where(empty, -torch.inf, torch.log(safe_total) + peak))
