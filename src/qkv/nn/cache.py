"""The key-value cache: keys and values remembered from step to step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qkv.cluster.exchange import Exchange
from qkv.nn.heads import PerHead, of_head
from qkv.similarity import Similarity
from qkv.similarity.prepared import Prepared


class KVCache:
    """Buffers for `capacity` keys and values, filled as a sequence grows.

    They are allocated once, at the first :meth:`append`; later steps write into them and read views
    of them, and never copy the past. What is kept of a key is what the similarity prepares of it
    (for :class:`qkv.Additive` its projection), so a step projects the new tokens only.

    >>> import torch, qkv.nn
    >>> layer = qkv.nn.MultiheadAttention(8, 2, batch_first=True, mask=qkv.mask.Causal())
    >>> words, cache = torch.randn(1, 5, 8), qkv.nn.KVCache(capacity=5)
    >>> with torch.no_grad():
    ...     whole, _ = layer(words, words, words)
    ...     steps = [layer(word, word, word, cache=cache)[0] for word in words.split(1, dim=1)]
    >>> torch.allclose(torch.cat(steps, dim=1), whole, atol=1e-6)
    True

    With a process `group` each rank keeps `capacity` positions, the first rank the first ones, and
    so on; all ranks are called with the same tokens, and each writes down its own. `length` counts
    the positions of all.
    """

    def __init__(self, capacity: int, group: Any = None) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1; got {capacity}")
        self.capacity = capacity
        self.group = group
        exchange = None if group is None else Exchange(group)
        self._first = 0 if exchange is None else exchange.rank * capacity
        self._total = capacity if exchange is None else exchange.ranks * capacity
        self.length = 0
        self._buffers: tuple[Tensor, Tensor] | None = (
            None  # (..., capacity, d_k), (..., capacity, d_v)
        )

    @property
    def key(self) -> Tensor:
        """The keys so far, (…, length, d_k), of a group this rank's; a view, not a copy."""
        return self._filled(0)

    @property
    def value(self) -> Tensor:
        """The values so far, (…, length, d_v); a view, not a copy."""
        return self._filled(1)

    def append(self, key: Tensor, value: Tensor) -> None:
        """Remember keys (…, n, d_k) and values (…, n, d_v) as those that come next."""
        if torch.is_grad_enabled() and (key.requires_grad or value.requires_grad):
            raise RuntimeError("KVCache keeps no gradients; decode under torch.no_grad()")
        start, stop = self.length, self.length + key.shape[-2]
        if stop > self._total:
            raise ValueError(
                f"capacity exceeded: the cache holds {start} of {self._total} positions, "
                f"got {stop - start} more"
            )
        if self._buffers is None:
            self._buffers = (self._allocate(key), self._allocate(value))
        for name, buffer, new in zip(("key", "value"), self._buffers, (key, value), strict=True):
            expected = (*buffer.shape[:-2], new.shape[-2], buffer.shape[-1])
            if tuple(new.shape) != expected:
                raise ValueError(
                    f"{name} must have shape {expected} to match the cache; got {tuple(new.shape)}"
                )
            low, high = self._local(start), self._local(stop)
            skipped = self._first + low - start
            buffer[..., low:high, :] = new[..., skipped : skipped + high - low, :]
        self.length = stop

    def _local(self, position: int) -> int:
        """How many of the first so many positions this rank keeps."""
        return min(max(position - self._first, 0), self.capacity)

    def reorder(self, entries: Tensor) -> None:
        """Let batch entry i go on from what entry `entries[i]` remembers, as beam search does."""
        if self._buffers is not None:
            key, value = (self._selected(buffer, entries) for buffer in self._buffers)
            self._buffers = (key, value)

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` positions."""
        if not 0 <= length <= self.length:
            raise ValueError(f"length must be between 0 and {self.length}; got {length}")
        self.length = length

    def _filled(self, index: int) -> Tensor:
        if self._buffers is None:
            raise ValueError("cache is empty; the first call must bring key and value")
        return self._buffers[index][..., : self._local(self.length), :]

    def _allocate(self, like: Tensor) -> Tensor:
        return like.new_empty(*like.shape[:-2], self.capacity, like.shape[-1])

    def _selected(self, buffer: Tensor, entries: Tensor) -> Tensor:
        taken = buffer.new_empty(len(entries), *buffer.shape[1:])
        kept = self._local(self.length)
        taken[..., :kept, :] = buffer[..., :kept, :].index_select(0, entries)
        return taken

    def __repr__(self) -> str:
        return f"KVCache(capacity={self.capacity}, length={self.length})"


def prepare(
    similarity: Similarity | PerHead, query: Tensor, key: Tensor
) -> tuple[Similarity | PerHead, Tensor, Tensor]:
    """Do what is done once per token, for tokens that will be compared again and again."""
    if isinstance(similarity, PerHead):
        heads = len(similarity)
        parts = [
            prepare(similarity_of_head, of_head(query, head, heads), of_head(key, head, heads))  # type: ignore[arg-type]
            for head, similarity_of_head in enumerate(similarity)
        ]
        similarities, queries, keys = zip(*parts, strict=True)
        return PerHead(similarities), torch.cat(queries, dim=1), torch.cat(keys, dim=1)
    if type(similarity).prepare is Similarity.prepare:
        return similarity, query, key  # nothing to be done; fast operators know it by its name
    similarity.check(query, key)
    prepared_query, prepared_key = similarity.prepare(query, key)
    return Prepared(similarity), prepared_query.to(query.dtype), prepared_key.to(key.dtype)
