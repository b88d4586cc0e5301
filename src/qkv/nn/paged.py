"""Keys and values in pages of fixed size: they grow without a copy, and sequences share them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from qkv import pooling
from qkv.bias import PositionBias, ShardBias
from qkv.mask import Mask, NothingVisible, Shard, Window, intersection, mask_of_shard
from qkv.nn.errors import InputError
from qkv.nn.heads import PerHead, attend_per_head
from qkv.partial import Partial
from qkv.similarity import Similarity


class Page:
    """Buffers for some keys and values, and how many caches share them."""

    def __init__(self, key: Tensor, value: Tensor) -> None:
        self.key, self.value, self.owners = key, value, 1


class Filled(NamedTuple):
    """What a page holds of a sequence: views, not copies."""

    start: int  # the position of its first key
    key: Tensor  # (…, keys, d_k)
    value: Tensor


class PagedCache:
    """Keys and values of a sequence, or of a batch of one length, in pages of `page_size`.

    As :class:`KVCache`, without a capacity: a page is added where the last one is full, and no
    other is touched. :meth:`fork` goes on in several ways from one prefix, which all share; the
    page that two would write to is copied, no other. Answers are exact, merged from those of
    the pages.

    >>> import torch, qkv.nn
    >>> layer = qkv.nn.MultiheadAttention(8, 2, batch_first=True, mask=qkv.mask.Causal())
    >>> words, cache = torch.randn(1, 5, 8), qkv.nn.PagedCache(page_size=2)
    >>> with torch.no_grad():
    ...     whole, _ = layer(words, words, words)
    ...     steps = [
    ...         layer(word, word, word, cache=cache, need_weights=False)[0]
    ...         for word in words.split(1, dim=1)
    ...     ]
    >>> torch.allclose(torch.cat(steps, dim=1), whole, atol=1e-6)
    True

    Args:
        page_size: how many positions a page holds.
        window: a query sees the keys at most so many positions before its own; pages that no later
            query can see are freed. None: all are kept.
    """

    group = None  # of processes: not supported

    def __init__(self, page_size: int = 256, window: int | None = None) -> None:
        if page_size < 1:
            raise ValueError(f"page_size must be at least 1; got {page_size}")
        if window is not None and window < 0:
            raise ValueError(f"window must be at least 0; got {window}")
        self.page_size, self.window = page_size, window
        self.length = 0
        self._pages: dict[int, Page] = {}  # by number; those that were freed are missing

    def append(self, key: Tensor, value: Tensor) -> None:
        """Remember keys (…, n, d_k) and values (…, n, d_v) as those that come next."""
        if torch.is_grad_enabled() and (key.requires_grad or value.requires_grad):
            raise RuntimeError("PagedCache keeps no gradients; decode under torch.no_grad()")
        self._check("key", key, key.shape[-2])
        self._check("value", value, key.shape[-2])
        if self.window is not None:
            self._free(before=self.length - self.window)
        taken, new = 0, key.shape[-2]
        while taken < new:
            number, low = divmod(self.length, self.page_size)
            count = min(self.page_size - low, new - taken)
            page = self._writable_page(number, key, value)
            page.key[..., low : low + count, :] = key[..., taken : taken + count, :]
            page.value[..., low : low + count, :] = value[..., taken : taken + count, :]
            taken, self.length = taken + count, self.length + count

    def fork(self) -> PagedCache:
        """A cache that continues independently and shares the pages so far."""
        other = PagedCache(self.page_size, self.window)
        other.length, other._pages = self.length, dict(self._pages)
        for page in self._pages.values():
            page.owners += 1
        return other

    def truncate(self, length: int) -> None:
        """Forget all but the first `length` positions."""
        if not 0 <= length <= self.length:
            raise ValueError(f"length must be between 0 and {self.length}; got {length}")
        self.length = length
        for number in [n for n in self._pages if n * self.page_size >= length]:
            self._pages.pop(number).owners -= 1

    def filled(self) -> Iterator[Filled]:
        """The pages that are kept, in order."""
        for number in sorted(self._pages):
            page, start = self._pages[number], number * self.page_size
            count = min(self.page_size, self.length - start)
            yield Filled(start, page.key[..., :count, :], page.value[..., :count, :])

    def _writable_page(self, number: int, key: Tensor, value: Tensor) -> Page:
        """The page to write to, ours alone."""
        page = self._pages.get(number)
        if page is None:
            page = Page(*(_buffer(x, self.page_size) for x in (key, value)))
        elif page.owners > 1:
            page.owners -= 1
            page = Page(page.key.clone(), page.value.clone())
        self._pages[number] = page
        return page

    def _free(self, before: int) -> None:
        for number in [n for n in self._pages if (n + 1) * self.page_size <= before]:
            self._pages.pop(number).owners -= 1

    def _check(self, name: str, new: Tensor, rows: int) -> None:
        expected = (*new.shape[:-2], rows, new.shape[-1])
        if self._pages:
            page = next(iter(self._pages.values()))
            held = page.key if name == "key" else page.value
            expected = (*held.shape[:-2], rows, held.shape[-1])
        if tuple(new.shape) != expected:
            raise ValueError(
                f"{name} must have shape {expected} to match the cache; got {tuple(new.shape)}"
            )

    def __repr__(self) -> str:
        return f"PagedCache(page_size={self.page_size}, length={self.length})"


def _buffer(like: Tensor, size: int) -> Tensor:
    return like.new_empty(*like.shape[:-2], size, like.shape[-1])


def attend_pages(
    cache: PagedCache, similarity: Similarity | PerHead, query: Tensor, mask: Mask | None
) -> Tensor:
    """The answer to the newest queries (batch, heads, n, d) over all that the cache keeps.

    `mask` is over all positions so far, also those that were freed.
    """
    n, m = query.shape[-2], cache.length
    limits, biases = (None, ()) if mask is None else mask.without_positions()
    if limits is not None and limits.needs_scores:
        raise InputError(
            f"mask {limits!r} ranks all keys, which a paged cache keeps in separate pages"
        )
    if cache.window is not None:
        limits = intersection(limits, Window(cache.window, m))
    answer: Partial | None = None
    batch = tuple(query.shape[:-2])
    for start, key, value in cache.filled():
        page = Shard(0, n, start, key.shape[-2], n, m)
        visible = mask_of_shard(limits, page, batch, query.device)
        if isinstance(visible, NothingVisible):
            continue
        added = [ShardBias(bias, page) for bias in biases if isinstance(bias, PositionBias)]
        options = {"mask": intersection(visible, *added)}
        partial = Partial(
            *attend_per_head(pooling.attend_partial, similarity, query, key, value, **options)
        )
        answer = partial if answer is None else answer.merge(partial)
    if answer is None:
        return query.new_zeros(*batch, n, next(cache.filled()).value.shape[-1])
    return answer.answer
