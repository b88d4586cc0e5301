"""Fuzzy columns: pairs of texts of two tables that are similar enough, and their ratios."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa

from qkv.table.comparison import normalised
from qkv.table.join import indel
from qkv.table.join.candidates import Candidates, groups, spans_of

#: Left rows that are compared at once, and the pairs for which each has room at first.
_ROWS, _ROOM = 4096, 64
#: Letters with a separate bit in each of both words; rarer ones share bits.
_ONCE, _OFTEN = 64, 32


class Texts(NamedTuple):
    """Normalised texts as code points, one after the other."""

    points: np.ndarray
    first: np.ndarray  # (n + 1,): where each begins

    @classmethod
    def of(cls, column: pa.Array) -> Texts:
        texts = list(map(normalised, column.to_pylist()))
        first = np.zeros(len(texts) + 1, np.int64)
        np.cumsum(np.fromiter(map(len, texts), np.int64, len(texts)), out=first[1:])
        return cls(np.frombuffer("".join(texts).encode("utf-32-le"), np.uint32), first)

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.first)

    @property
    def longest(self) -> int:
        return int(self.lengths.max(initial=0))


class Alphabet(NamedTuple):
    """The letters of the right table by how often they occur, the most frequent first."""

    points: np.ndarray  # ascending
    numbers: np.ndarray  # (len(points),)

    @classmethod
    def of(cls, texts: Texts) -> Alphabet:
        points, counts = np.unique(texts.points, return_counts=True)
        numbers = np.empty(len(points), np.int32)
        numbers[np.argsort(-counts, kind="stable")] = np.arange(len(points), dtype=np.int32)
        return cls(points, numbers)

    def spell(self, texts: Texts) -> np.ndarray:
        """Letters as numbers; all that the right table lacks are one more."""
        if not len(self.points):
            return np.zeros(len(texts.points), np.int32)
        places = np.minimum(np.searchsorted(self.points, texts.points), len(self.points) - 1)
        is_known = self.points[places] == texts.points
        return np.where(is_known, self.numbers[places], np.int32(len(self.points)))


def _bits(letters: np.ndarray, first: np.ndarray) -> np.ndarray:
    """Which letters a text has once, twice and thrice, as two words of bits, (n, 2).

    Of two texts that differ in so many bits, at least as many letters are to be deleted or
    inserted: a bit more is a letter more.
    """
    n = len(first) - 1
    bits = np.empty((n, 2), np.int64)
    for start in range(0, n, _ROWS):
        stop = min(start + _ROWS, n)
        part = letters[first[start] : first[stop]].astype(np.int64)
        whose = np.repeat(np.arange(stop - start), np.diff(first[start : stop + 1]))
        counts = np.bincount(whose * _ONCE + part % _ONCE, minlength=(stop - start) * _ONCE)
        counts = counts.reshape(stop - start, _ONCE)
        often = counts[:, :_OFTEN]
        has = np.stack([counts >= 1, np.concatenate([often >= 2, often >= 3], axis=1)], axis=1)
        bits[start:stop] = np.packbits(has, axis=-1).view(np.int64)[..., 0]
    return bits


def _limits(longest: int, cutoff: float) -> np.ndarray:
    """How far apart texts may be, by the length of both: 1 − distance / length ≥ cutoff."""
    lengths = np.arange(longest + 1)
    positive = np.maximum(lengths, 1)
    most: np.ndarray = np.floor((1.0 - cutoff) * lengths).astype(np.int64)
    # Rounding may have made it one too low, or one too high.
    most += (most < lengths) & (1.0 - (most + 1) / positive >= cutoff)
    most -= 1.0 - most / positive < cutoff
    return most


class FuzzyIndex:
    """The texts of a right table, ready to be compared with those of a left one."""

    def __init__(self, texts: Texts) -> None:
        self.texts = texts
        self._alphabet = Alphabet.of(texts)
        self._letters = self._alphabet.spell(texts)
        self._bits = _bits(self._letters, texts.first)

    def compare(
        self, queries: Texts, before: Candidates, cutoff: float, bandwidth: float
    ) -> Iterator[Candidates]:
        """The candidates with a ratio of at least `cutoff`, for some left rows at a time.

        Each weighs exp(−(1 − ratio) / bandwidth).
        """
        letters = self._alphabet.spell(queries)
        query = _Query(queries.first, letters, _bits(letters, queries.first))
        bits = np.ascontiguousarray(self._bits[before.right].T)
        limits = _limits(queries.longest + self.texts.longest, cutoff)
        for start in range(0, len(before.left), _ROWS):
            some = before.some(slice(start, start + _ROWS))
            pairs = self._find(query, some, bits, limits, np.full(len(some.left), _ROOM))
            few = pairs.count <= _ROOM
            yield self._within_limits(
                queries, some.some(few), pairs, np.flatnonzero(few), bandwidth
            )
            more, counts = some.some(~few), pairs.count[~few]
            for part in groups(counts):
                batch = more.some(part)
                pairs = self._find(query, batch, bits, limits, counts[part])
                everyone = np.arange(len(batch.left))
                yield self._within_limits(queries, batch, pairs, everyone, bandwidth)

    def _find(
        self,
        query: _Query,
        before: Candidates,
        bits: np.ndarray,
        limits: np.ndarray,
        room: np.ndarray,
    ) -> indel.NearPairs:
        n = len(before.left)
        total = int(room.sum())
        pairs = indel.NearPairs(
            np.cumsum(room) - room,
            room,
            np.zeros(n, np.int64),
            np.empty(total, np.int64),
            np.empty(total, np.int64),
        )
        words = max(1, -(-int(np.diff(query.first).max(initial=0)) // indel.WORD))
        indel.compare(
            indel.Queries(before.left, query.first, query.letters, query.bits, before.spans),
            indel.Candidates(before.right, bits, self.texts.first, self._letters),
            limits,
            self.texts.longest,
            pairs,
            count=n,
            grain=max(1, min(16, n // 8)),
            scratch=indel.Scratch((indel.TILE,), (len(self._alphabet.points) + 1, words), (words,)),
        )
        return pairs

    def _within_limits(
        self,
        queries: Texts,
        before: Candidates,
        pairs: indel.NearPairs,
        which: np.ndarray,
        bandwidth: float,
    ) -> Candidates:
        """The pairs found for these left rows, as candidates."""
        counts, starts = pairs.count[which], pairs.start[which]
        whose, places = Candidates(
            which, np.stack([starts, starts + counts], axis=1), before.right
        ).pairs()
        right = before.right[pairs.place[places]]
        lengths = queries.lengths[before.left][whose] + self.texts.lengths[right]
        logs = -(pairs.distance[places] / np.maximum(lengths, 1)) / bandwidth
        if len(before.logs):
            logs += before.logs[pairs.place[places]]
        return Candidates(before.left, spans_of(counts), right, logs)


class _Query(NamedTuple):
    """The texts of the left table, spelt with the letters of the right."""

    first: np.ndarray
    letters: np.ndarray
    bits: np.ndarray
