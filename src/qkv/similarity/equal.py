"""The hard look-up: a key either is the query or it is not."""

from __future__ import annotations

import torch
from torch import Tensor

from qkv.similarity.base import Similarity, steps
from qkv.tracing import is_eager, is_finite


class Equal(Similarity):
    """f(q, k) = 1 where q equals k in every dimension, else 0; weights proportional to it.

    One match gives a one-hot row, several share the weight, none leaves the row empty.
    """

    weighting = "proportional"
    may_vanish = True

    nonnegative = True
    has_steps = True
    family = "equal"

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        with torch.no_grad():
            scores = _same(query, key).to(query.dtype)
            if not (is_eager(query, key) and is_finite(query, key)):
                # NaN equals nothing, which would hide it; a score of NaN shows it.
                unknown = query.isnan().any(-1).unsqueeze(-1) | key.isnan().any(-1).unsqueeze(-2)
                scores = scores.masked_fill(unknown, torch.nan)
        return steps(scores, query, key)

    def tensors(self) -> tuple[Tensor, ...]:
        return ()

    def pair_width(self, dim: int) -> int:
        return 1 if is_eager() else dim


def _same(query: Tensor, key: Tensor) -> Tensor:
    """Whether each pair is equal in every dimension, (…, n, m)."""
    if is_eager(query, key) and is_finite(query, key):
        # How many differences are not 0, without the block (n, m, d).
        return torch.cdist(query, key, p=0.0) == 0
    return (query.unsqueeze(-2) == key.unsqueeze(-3)).all(dim=-1)
