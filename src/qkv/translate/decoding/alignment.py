"""Alignments of target and source tokens, merged from pieces to words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor


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

    The weight of a source word is the sum over its pieces, the row of a target word the mean over
    its pieces. So rows still sum to 1.
    """
    source = _labels(alignment.source, source_words, join_source)
    target = _labels(alignment.target, target_words, join_target)
    columns = torch.zeros(len(alignment.source), len(source), dtype=alignment.weights.dtype)
    columns[torch.arange(len(source_words)), torch.tensor(source_words, dtype=torch.long)] = 1.0
    rows = torch.zeros(len(target), len(alignment.target), dtype=alignment.weights.dtype)
    rows[torch.tensor(target_words, dtype=torch.long), torch.arange(len(target_words))] = 1.0
    rows = rows / rows.sum(1, keepdim=True)
    return Alignment(source, target, rows @ alignment.weights @ columns)


def _labels(
    pieces: Sequence[str], words: Sequence[int], join: Callable[[Sequence[str]], str]
) -> list[str]:
    labels: list[list[str]] = [[] for _ in range(max(words, default=-1) + 1)]
    for piece, word in zip(pieces, words, strict=True):
        labels[word].append(piece)
    return [join(parts) for parts in labels]
