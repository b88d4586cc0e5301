"""Pairs of texts that are similar enough, in compiled code: first a bound, then the distance.

The distance of two texts is the least number of letters to delete and insert (Indel); rapidfuzz's
ratio is 1 − distance / (sum of lengths). It is never less than the number of letters that only one
of both has, which two words of bits for each text tell: their exclusive or counts them. Few pairs
pass that; for these the distance is computed, 64 letters at a time (Hyyrö's bit-parallel longest
common subsequence).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from qkv.jit import device, kernel
from qkv.jit.builtins import noinline
from qkv.jit.signature import Int1, Int2, Int32_1, PerThread

#: Candidates whose bounds are computed at once: they stay in the nearest cache.
TILE = 1024
#: Letters in a word of bits.
WORD = 64

_ONE, _TWO, _FOUR, _TOP = np.uint64(1), np.uint64(2), np.uint64(4), np.uint64(56)
_ALL, _NONE = np.uint64(2**64 - 1), np.uint64(0)
_PAIRS, _QUADS = np.uint64(0x5555555555555555), np.uint64(0x3333333333333333)
_BYTES, _SUM = np.uint64(0x0F0F0F0F0F0F0F0F), np.uint64(0x0101010101010101)


class Queries(NamedTuple):
    """n rows of the left table, and which candidates each meets."""

    row: Int1  # (n,): whose text it is
    first: Int1  # where the text of each row begins in `letters`
    letters: Int32_1  # numbers of letters, all texts one after the other
    bits: Int2  # (rows, 2)
    spans: Int2  # (n, 2)


class Candidates(NamedTuple):
    """Texts of the right table, in an order in which each query meets a run of them."""

    row: Int1  # (p,): whose text it is
    bits: Int2  # (2, p)
    first: Int1  # (m + 1,): where the text of each row begins in `letters`
    letters: Int32_1


class NearPairs(NamedTuple):
    """Pairs within the limit: for each query at most `room` of them, from `start` on."""

    start: Int1  # (n,)
    room: Int1  # (n,)
    count: Int1  # (n,): how many there are, also beyond the room for them
    place: Int1  # which candidate
    distance: Int1


class Scratch(NamedTuple):
    """What a thread knows of a query."""

    bounds: Int1  # (TILE,)
    masks: Int2  # (letters of the alphabet, words): where each letter stands in the query
    state: Int1  # (words,)


@device
def _ones(x: Any) -> Any:
    """How many bits are set; LLVM knows this for the instruction that it is."""
    x = x - ((x >> _ONE) & _PAIRS)
    x = (x & _QUADS) + ((x >> _TWO) & _QUADS)
    x = (x + (x >> _FOUR)) & _BYTES
    return (x * _SUM) >> _TOP


@device
def _bound(low: Any, high: Any, own_low: int, own_high: int, bounds: Any) -> None:
    """At least how far each candidate is."""
    noinline()
    first, second = np.uint64(own_low), np.uint64(own_high)
    for i in range(len(low)):
        bounds[i] = np.int64(_ones(np.uint64(low[i]) ^ first) + _ones(np.uint64(high[i]) ^ second))


@device
def _common_short(masks: Any, text: Any) -> int:
    """The length of the longest common subsequence with a query of at most 64 letters."""
    state = _ALL
    for i in range(len(text)):
        match = state & np.uint64(masks[text[i], 0])
        state = (state + match) | (state - match)
    return int(_ones(~state))


@device
def _common_long(masks: Any, text: Any, state: Any) -> int:
    """The same for a query of any length: one addition over several words, with carry."""
    words = len(state)
    for w in range(words):
        state[w] = -1
    for i in range(len(text)):
        carry = _NONE
        for w in range(words):
            bits = np.uint64(state[w])
            match = bits & np.uint64(masks[text[i], w])
            total = bits + match
            over = _ONE if total < bits else _NONE
            total = total + carry
            carry = _ONE if total < carry else over
            state[w] = np.int64(total | (bits - match))
    common = 0
    for w in range(words):
        common += int(_ones(~np.uint64(state[w])))
    return common


@device
def _mark(letters: Any, masks: Any) -> None:
    for i in range(len(letters)):
        masks[letters[i], i // WORD] |= np.int64(_ONE << np.uint64(i % WORD))


@device
def _unmark(letters: Any, masks: Any) -> None:
    for i in range(len(letters)):
        masks[letters[i], i // WORD] = 0


@device
def _meet(
    query: Any, start: int, stop: int, candidates: Any, most: Any, widest: int, pairs: Any, q: int,
    scratch: Any,
) -> None:  # fmt: skip
    """Compare one query with the candidates of a tile."""
    for i in range(stop - start):
        if scratch.bounds[i] > widest:
            continue
        row = candidates.row[start + i]
        text = candidates.letters[candidates.first[row] : candidates.first[row + 1]]
        both = len(query) + len(text)
        if scratch.bounds[i] > most[both] or abs(len(query) - len(text)) > most[both]:
            continue
        if len(query) <= WORD:
            common = _common_short(scratch.masks, text)
        else:
            common = _common_long(scratch.masks, text, scratch.state)
        if both - 2 * common <= most[both]:
            count = pairs.count[q]
            if count < pairs.room[q]:
                pairs.place[pairs.start[q] + count] = start + i
                pairs.distance[pairs.start[q] + count] = both - 2 * common
            pairs.count[q] = count + 1


@kernel
def compare(
    start: int, stop: int, queries: Queries, candidates: Candidates, most: Int1, longest: int,
    pairs: NearPairs, scratch: PerThread[Scratch],
) -> None:  # fmt: skip
    """Find what is near enough to the queries from `start` to `stop`.

    `most` says how far texts of some length together may be apart; `longest` is the length of the
    longest candidate.
    """
    for a in range(scratch.masks.shape[0]):
        for w in range(scratch.masks.shape[1]):
            scratch.masks[a, w] = 0
    for q in range(start, stop):
        row = queries.row[q]
        query = queries.letters[queries.first[row] : queries.first[row + 1]]
        pairs.count[q] = 0
        _mark(query, scratch.masks)
        widest = most[len(query) + longest]  # limits grow with lengths
        last = queries.spans[q, 1]
        for tile in range(queries.spans[q, 0], last, TILE):
            end = min(tile + TILE, last)
            low, high = candidates.bits[0, tile:end], candidates.bits[1, tile:end]
            bounds = scratch.bounds[: end - tile]
            _bound(low, high, queries.bits[row, 0], queries.bits[row, 1], bounds)
            _meet(query, tile, end, candidates, most, widest, pairs, q, scratch)
        _unmark(query, scratch.masks)
