"""Several sequences packed into one, which do not look at each other."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qkv.mask.base import Mask, Runs, Tile
from qkv.tracing import can_read_values

Numbers: TypeAlias = Sequence[int] | npt.NDArray[np.integer] | Tensor


class Documents(Mask):
    """Keys of the query's own document, where several stand one after the other.

    >>> import torch, qkv
    >>> words = torch.randn(10, 8)  # three sentences, of 5, 2 and 3 words
    >>> packed = qkv.attend(words, words, words, mask=qkv.mask.Documents([5, 2, 3]))
    >>> alone = qkv.attend(words[5:7], words[5:7], words[5:7])
    >>> torch.allclose(packed[5:7], alone, atol=1e-6)
    True

    Work and memory are those of the documents, one by one. ``Documents(…) & Causal()`` looks back
    within each.

    Args:
        lengths: how long each document is, one after the other; together they are all tokens.
        key_lengths: how many keys there are for each, where they are not the queries themselves.
    """

    def __init__(self, lengths: Numbers, key_lengths: Numbers | None = None) -> None:
        counts = _counts("lengths", lengths)
        of_keys = counts if key_lengths is None else _counts("key_lengths", key_lengths)
        if len(counts) != len(of_keys):
            raise ValueError(
                f"key_lengths must be one for each of {len(counts)} documents; got {len(of_keys)}"
            )
        stops = of_keys.cumsum(0)
        numbers = torch.arange(len(counts), device=counts.device)
        ids = numbers.repeat_interleave(counts)
        key_ids = None if key_lengths is None else numbers.repeat_interleave(of_keys)
        self._set(ids, Runs((stops - of_keys)[ids], stops[ids]), key_ids)

    @classmethod
    def from_ids(cls, ids: Numbers) -> Documents:
        """From the number of each token's document, (n,) or, for a batch, (batch, n).

        Below 0 it is padding, which sees nothing and is not seen.
        """
        numbers = torch.as_tensor(ids)
        if numbers.dtype == torch.bool or numbers.is_floating_point():
            raise TypeError(f"ids must be whole numbers; got {numbers.dtype}")
        made = cls.__new__(cls)
        made._set(numbers, _runs_of(numbers) if can_read_values(numbers) else None)
        return made

    @classmethod
    def from_offsets(cls, offsets: Numbers, key_offsets: Numbers | None = None) -> Documents:
        """From where documents start, and the end: 0, 5, 7, 10, as `cu_seqlens` has it."""
        of_keys = None if key_offsets is None else torch.as_tensor(key_offsets).diff()
        return cls(torch.as_tensor(offsets).diff(), of_keys)

    def _set(self, ids: Tensor, runs: Runs | None, key_ids: Tensor | None = None) -> None:
        self.ids, self._runs = ids, runs
        self.key_ids = ids if key_ids is None else key_ids
        self._share, self._pieces = 1.0, 1
        if runs is not None and can_read_values(ids) and ids.shape[-1] and self.key_ids.shape[-1]:
            self._share = runs.share(self.key_ids.shape[-1])
            entries = ids.shape[:-1].numel()
            self._pieces = 1 + round(int((ids.diff() != 0).sum()) / entries)

    def check(self, batch: tuple[int, ...], n: int, m: int) -> None:
        *lead, tokens = self.ids.shape
        keys = self.key_ids.shape[-1]
        if n != tokens or m != keys:
            numbered = f"{tokens} tokens" if keys == tokens else f"{tokens} and {keys} tokens"
            raise ValueError(
                f"mask Documents numbers {numbered}, which must be all queries and all keys; "
                f"got {n} queries and {m} keys"
            )
        fits = len(lead) <= len(batch) and all(
            size == 1 or size == wanted for size, wanted in zip(lead, batch, strict=False)
        )
        if not fits:
            raise ValueError(
                f"mask Documents must match the first leading axes {batch}; got shape {tuple(lead)}"
            )

    def allowed(self, tile: Tile) -> Tensor:
        own = self._for_batch(self.ids, tile)[..., tile.start : tile.stop].unsqueeze(-1)
        return (own == self._for_batch(self.key_ids, tile).unsqueeze(-2)) & (own >= 0)

    def as_runs(self, tile: Tile) -> Runs | None:
        if self._runs is None:
            return None
        start, stop = (
            self._for_batch(x, tile)[..., tile.start : tile.stop] for x in self._runs[:2]
        )
        if self.ids.ndim > 1:
            shape = (*tile.batch, tile.stop - tile.start)
            start, stop = start.expand(shape), stop.expand(shape)
        return Runs(start, stop)

    def visible_keys(self, tile: Tile) -> Tensor:
        return self._for_batch(self.key_ids, tile).unsqueeze(-2) >= 0

    def _for_batch(self, x: Tensor, tile: Tile) -> Tensor:
        """(…, n) with the axes of the batch that it lacks; none where all entries are alike."""
        if x.ndim > 1:
            missing = len(tile.batch) + 1 - x.ndim
            x = x.reshape(*x.shape[:-1], *([1] * missing), x.shape[-1])
        return x.to(tile.device)

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> Mask:
        if axis >= self.ids.ndim - 1 or self.ids.shape[axis] == 1:
            return self
        made = Documents.__new__(Documents)
        runs = None
        if self._runs is not None:
            first, last = (x.narrow(axis, start, stop - start) for x in self._runs[:2])
            runs = Runs(first, last)
        made._set(self.ids.narrow(axis, start, stop - start), runs)
        return made

    def for_shared_heads(self, axis: int) -> Mask | None:
        return self if self.ids.ndim - 1 <= axis else None

    def tensors(self) -> list[Tensor]:
        return [self.ids]

    def share(self, n: int, m: int) -> float:
        return self._share

    def pieces(self) -> int:
        return self._pieces

    def signature(self) -> Hashable:
        # Estimates depend on how much is kept and how many there are, within a factor.
        size, pieces = round(np.log2(max(self._share, 1e-9))), round(np.log2(self._pieces))
        sizes = self.ids.shape, self.key_ids.shape
        return Documents, *sizes, self.ids.device, self._runs is None, size, pieces

    def __repr__(self) -> str:
        return f"Documents({self._share:.2%} of {tuple(self.ids.shape)})"


def _counts(name: str, lengths: Numbers) -> Tensor:
    counts = torch.as_tensor(lengths)
    if counts.dtype == torch.bool or counts.is_floating_point():
        raise TypeError(f"{name} must be whole numbers; got {counts.dtype}")
    if counts.ndim != 1 or (can_read_values(counts) and bool((counts < 0).any())):
        raise ValueError(f"{name} must be a list of lengths, none below 0; got {counts.tolist()}")
    return counts.long()


def _runs_of(ids: Tensor) -> Runs | None:
    """One run for each token; None where a document is torn apart."""
    n = ids.shape[-1]
    places = torch.arange(n, device=ids.device).expand(ids.shape)
    first = torch.ones_like(ids, dtype=torch.bool)
    first[..., 1:] = ids[..., 1:] != ids[..., :-1]
    # Padding may stand anywhere; a document may begin only once.
    begun = torch.where(first & (ids >= 0), ids, -1).sort(-1).values
    if bool(((begun[..., 1:] == begun[..., :-1]) & (begun[..., 1:] >= 0)).any()):
        return None
    start = torch.where(first, places, 0).cummax(-1).values
    last = torch.ones_like(first)
    last[..., :-1] = first[..., 1:]
    stop = n - torch.where(last, n - 1 - places, 0).flip(-1).cummax(-1).values.flip(-1)
    return Runs(start, torch.where(ids >= 0, stop, start))
