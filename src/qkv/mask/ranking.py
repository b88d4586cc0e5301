"""Masks by score: the best keys of each query."""

from __future__ import annotations

from collections.abc import Hashable

import torch
from torch import Tensor

from qkv.mask.base import Mask, Tile
from qkv.mask.positions import whole_number


class TopK(Mask):
    """The `k` best-scoring keys of each query; of equal scores, those that come first.

    Combined with ``&``, it ranks only the keys that the other mask allows.
    """

    needs_scores = True

    def __init__(self, k: int) -> None:
        self.k = whole_number("k", k, least=1)

    def allowed(self, tile: Tile) -> Tensor:
        # Before scores are known any key may be among the best.
        return torch.ones(tile.stop - tile.start, tile.m, dtype=torch.bool, device=tile.device)

    def allowed_by_score(
        self, universe: Tensor | None, tile: Tile, log_scores: Tensor
    ) -> Tensor | None:
        if universe is not None:
            log_scores = log_scores.masked_fill(~universe, -torch.inf)
        # A stable sort, because torch.topk breaks ties as it likes.
        ranking = log_scores.detach().sort(dim=-1, descending=True, stable=True).indices
        best = torch.zeros_like(log_scores, dtype=torch.bool)
        best = best.scatter(-1, ranking[..., : self.k], True)
        return best if universe is None else universe & best

    def as_topk(self) -> tuple[int, Mask | None]:
        return self.k, None

    def for_shared_heads(self, axis: int) -> Mask:
        return self

    def signature(self) -> Hashable:
        return TopK, self.k

    def __repr__(self) -> str:
        return f"TopK({self.k})"
