"""The hard look-up: a key either is the query or it is not."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor

from qkv.similarity.base import Similarity


class Equal(Similarity):
    """f(q, k) = 1 where q equals k in every dimension, else 0; weights proportional to it.

    One match gives a one-hot row, several share the weight, none leaves the row empty.
    """

    weighting = "proportional"
    may_vanish: ClassVar[bool] = True

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        same = (query.unsqueeze(-2) == key.unsqueeze(-3)).all(dim=-1)  # (..., n, m)
        # NaN equals nothing, which would hide it; a score of NaN shows it.
        unknown = query.isnan().any(-1).unsqueeze(-1) | key.isnan().any(-1).unsqueeze(-2)
        score = same.to(query.dtype).masked_fill(unknown, torch.nan)
        return score + _nothing(query).unsqueeze(-1) + _nothing(key).unsqueeze(-2)

    def pair_width(self, dim: int) -> int:
        return dim


def _nothing(tokens: Tensor) -> Tensor:
    """0 for each token, with the gradient 0: a step function has that nearly everywhere."""
    return (tokens * 0).nan_to_num(0.0).sum(dim=-1)
