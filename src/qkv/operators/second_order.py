"""Derivatives of gradients in linear memory: a tile of queries at a time, by the plain formula."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.memory import keep_freed_pages
from qkv.operators.tiles import TileFunction, spans


class Pulled(NamedTuple):
    """What a derivative of gradients pulls back to; None where nothing depends on it."""

    grads: list[Tensor | None]
    rows: list[Tensor | None]
    whole: list[Tensor | None]


class Gradients(NamedTuple):
    """The gradients of function(0, *rows, *whole) for `grads` of its outputs, and what is wanted
    of them: Σ ⟨upstream, gradient⟩ is differentiated once more."""

    function: TileFunction
    rows: Sequence[Tensor]  # (..., n, columns): a tile takes some of the rows
    whole: Sequence[Tensor]
    grads: Sequence[Tensor]  # (..., n, columns)
    upstream: Sequence[Tensor | None]  # of rows, then of whole

    def pull(self, step: int) -> Pulled:
        """The derivative with respect to grads, rows and whole, `step` rows at a time."""
        keep_freed_pages()
        sliced = [*self.grads, *self.rows]
        n = self.rows[0].shape[-2]
        totals: list[Tensor | None] = [None] * (len(sliced) + len(self.whole))
        for start, stop in [(0, n)] if torch.compiler.is_compiling() else spans(n, step):
            for place, part in enumerate(self._tile(start, stop)):
                if part is None:
                    continue
                total = totals[place]
                if total is None:
                    like = (*sliced, *self.whole)[place]
                    total = totals[place] = torch.zeros_like(like)
                (total[..., start:stop, :] if place < len(sliced) else total).add_(part)
        first = len(self.grads)
        return Pulled(totals[:first], totals[first : len(sliced)], totals[len(sliced) :])

    def _tile(self, start: int, stop: int) -> Sequence[Tensor | None]:
        def part(tensor: Tensor) -> Tensor:
            return tensor[..., start:stop, :]

        with torch.enable_grad():
            grads, rows = (
                [part(x).detach().requires_grad_() for x in tensors]
                for tensors in (self.grads, self.rows)
            )
            whole = [x.detach().requires_grad_() for x in self.whole]
            outputs = self.function(start, *rows, *whole)
            firsts = torch.autograd.grad(
                outputs, [*rows, *whole], grads, create_graph=True, allow_unused=True
            )
            pairs = [
                (first, part(up) if place < len(rows) else up)
                for place, (first, up) in enumerate(zip(firsts, self.upstream, strict=True))
                if first is not None and first.requires_grad and up is not None
            ]
        leaves = [*grads, *rows, *whole]
        if not pairs:
            return [None] * len(leaves)
        return torch.autograd.grad(
            [first for first, _ in pairs], leaves, [up for _, up in pairs], allow_unused=True
        )
