"""Words as vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

Vectors: TypeAlias = npt.NDArray[np.floating[Any]]

#: How to treat a word without a vector: raise an error, use zeros, or skip it.
Unknown: TypeAlias = Literal["raise", "zero", "skip"]


class UnknownWordError(KeyError):
    """A word without a vector."""

    def __str__(self) -> str:
        return str(self.args[0])


class WordMatches(NamedTuple):
    """Words that have vectors, and their vectors, (words, d)."""

    words: list[str]
    vectors: Vectors


class WordVectors:
    """A vector for each of many words.

    >>> import numpy as np
    >>> from qkv.words import WordVectors
    >>> numbers = np.array([[1.0, 0.2], [1.0, 0.3], [-1.0, 1.0]])
    >>> vectors = WordVectors(["cat", "dog", "tax"], numbers)
    >>> vectors["dog"]
    array([1. , 0.3])
    >>> [word for word, _ in vectors.nearest("dog", 2)]
    ['cat', 'tax']

    A word that is unknown as written is looked up in lower case.

    Args:
        words: each once.
        vectors: (words, d), of a floating type; may be memory mapped.
    """

    def __init__(self, words: Sequence[str], vectors: Vectors) -> None:
        if vectors.ndim != 2 or len(vectors) != len(words):
            raise ValueError(
                f"vectors must have shape ({len(words)}, d) to match words; got {vectors.shape}"
            )
        if not np.issubdtype(vectors.dtype, np.floating):
            raise TypeError(f"vectors must be floating point; got {vectors.dtype}")
        self.words, self.vectors = list(words), vectors
        self._index = {word: row for row, word in enumerate(self.words)}
        if len(self._index) < len(self.words):
            twice = next(w for row, w in enumerate(self.words) if self._index[w] != row)
            raise ValueError(f"words must be distinct; {twice!r} occurs twice")

    @property
    def dim(self) -> int:
        """How many numbers a vector has."""
        return int(self.vectors.shape[1])

    def __len__(self) -> int:
        return len(self.words)

    def __contains__(self, word: object) -> bool:
        return isinstance(word, str) and self._row(word) is not None

    def __getitem__(self, word: str) -> Vectors:
        row = self._row(word)
        if row is None:
            raise UnknownWordError(f"no vector for the word {word!r}, out of {len(self):,} words")
        return np.array(self.vectors[row])  # not a view into a file

    def look_up(self, words: Iterable[str], unknown: Unknown = "raise") -> WordMatches:
        """The vectors of several words; `unknown` says how to treat those that have none.

        >>> from qkv.words import WordVectors
        >>> import numpy as np
        >>> WordVectors(["dog"], np.ones((1, 2))).look_up(["the", "Dog"], unknown="skip").words
        ['Dog']
        """
        if unknown not in ("raise", "zero", "skip"):
            raise ValueError(f"unknown must be 'raise', 'zero' or 'skip'; got {unknown!r}")
        known, rows = [], []
        for word in words:
            if word in self:
                row = self[word]
            elif unknown == "skip":
                continue
            elif unknown == "zero":
                row = np.zeros(self.dim, self.vectors.dtype)
            else:
                row = self[word]  # raises
            known.append(word)
            rows.append(row)
        vectors = np.stack(rows) if rows else np.zeros((0, self.dim), self.vectors.dtype)
        return WordMatches(known, vectors)

    def nearest(self, word: str | Vectors, k: int = 10) -> list[tuple[str, float]]:
        """The `k` words of highest cosine similarity, the nearest first, without the word itself.

        A vector may stand for a word: ``nearest(v["king"] - v["man"] + v["woman"])``.
        """
        if k < 1:
            raise ValueError(f"k must be at least 1; got {k}")
        itself = self._row(word) if isinstance(word, str) else None
        query = self[word] if isinstance(word, str) else np.asarray(word)
        if query.shape != (self.dim,):
            raise ValueError(f"word must be a vector of {self.dim} numbers; got {query.shape}")
        length = float(np.linalg.norm(query))
        lengths = self._lengths * (length if length > 0 else 1.0)
        cosines = (self.vectors @ query.astype(self.vectors.dtype)) / lengths
        if itself is not None:
            cosines[itself] = -np.inf
        k = min(k, len(self) - (itself is not None))
        best = np.argpartition(-cosines, k - 1)[:k] if k else np.empty(0, np.int64)
        best = best[np.lexsort((best, -cosines[best]))]
        return [(self.words[row], float(cosines[row])) for row in best]

    @cached_property
    def _lengths(self) -> Vectors:
        lengths = np.linalg.norm(self.vectors, axis=1)
        return np.where(lengths == 0, 1.0, lengths).astype(self.vectors.dtype)

    def _row(self, word: str) -> int | None:
        row = self._index.get(word)
        return self._index.get(word.lower()) if row is None else row

    def __repr__(self) -> str:
        return f"WordVectors({len(self):,} words × {self.dim})"
