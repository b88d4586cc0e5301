"""Alignments of target and source tokens, merged from pieces to words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from torch import Tensor

from qkv.visualization import summary


class Alignment(NamedTuple):
    source: list[str]  # s labels, the last of them the end of the sentence
    target: list[str]  # t labels
    weights: Tensor  # (t, s)


def merged(
    alignment: Alignment,
    source_words: Sequence[int],
    target_words: Sequence[int],
    join_source: Callable[[Sequence[str]], str],
    join_target: Callable[[Sequence[str]], str],
) -> Alignment:
    """The alignment of words, where each piece belongs to the word of this number.

    A word is looked at as much as its pieces together; it looks as its pieces do on average, see
    :func:`qkv.summary.merge`.
    """
    return Alignment(
        _labels(alignment.source, source_words, join_source),
        _labels(alignment.target, target_words, join_target),
        summary.merge(alignment.weights, target_words, source_words),
    )


def _labels(
    pieces: Sequence[str], words: Sequence[int], join: Callable[[Sequence[str]], str]
) -> list[str]:
    pieces_of: list[list[str]] = [[] for _ in range(max(words, default=-1) + 1)]
    for piece, word in zip(pieces, words, strict=True):
        pieces_of[word].append(piece)
    return [join(parts) for parts in pieces_of]
