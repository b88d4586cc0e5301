"""Batches of sentences of similar lengths, so that there is little padding."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from qkv.translate.data.text import Corpus, SkippedLines
from qkv.translate.data.vocabulary import BEGIN, END, PAD, Vocabulary


class Example(NamedTuple):
    """A pair in numbers; the source carries its END, the target carries neither end."""

    source: list[int]
    target: list[int]


class Batch(NamedTuple):
    """Examples side by side, filled up with PAD."""

    source: Tensor  # (batch, s)
    lengths: Tensor  # (batch,), of the sources
    inputs: Tensor  # (batch, t): BEGIN, then the target: input of the decoder
    labels: Tensor  # (batch, t): the target, then END: its expected output

    def to(self, device: torch.device) -> Batch:
        return Batch(*(part.to(device) for part in self))

    @property
    def tokens(self) -> int:
        """How many target tokens there are to predict."""
        return int((self.labels != PAD).sum())


@dataclass(frozen=True)
class Batching:
    """At most so many target tokens in a batch, padding included, or so many sentences."""

    tokens: int = 3000
    sentences: int | None = None

    def __post_init__(self) -> None:
        for name, count in (("tokens", self.tokens), ("sentences", self.sentences)):
            if count is not None and count < 1:
                raise ValueError(f"{name} of a batch must be at least 1; got {count}")

    def full(self, count: int, longest: int) -> bool:
        """Whether `count` sentences of up to `longest` tokens are more than a batch holds."""
        if self.sentences is not None:
            return count > self.sentences
        return count > 1 and count * longest > self.tokens


def encode(
    corpus: Corpus, source: Vocabulary, target: Vocabulary, max_length: int
) -> tuple[list[Example], SkippedLines]:
    """The pairs in numbers, without those that are longer than `max_length` pieces."""
    examples, skipped = (
        [],
        SkippedLines({reason: list(x) for reason, x in corpus.skipped.lines.items()}),
    )
    for line, pair in zip(corpus.lines, corpus.pairs, strict=True):
        left, right = source.split(pair.source).numbers, target.split(pair.target).numbers
        if len(left) > max_length or len(right) > max_length:
            skipped.add(f"of more than {max_length} pieces", line)
        else:
            examples.append(Example([*left, END], right))
    if not examples:
        raise ValueError(
            f"at least one pair must have no more than {max_length} pieces a side; got none"
        )
    return examples, skipped


def epoch(examples: Sequence[Example], batching: Batching, seed: int) -> list[list[int]]:
    """Which examples go together, in an order that only the seed decides."""
    generator = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(examples), generator=generator).tolist()
    # The sort is stable: examples of one length keep their random order in each epoch.
    order.sort(key=lambda i: (len(examples[i].target), len(examples[i].source)))
    groups = list(_grouped(order, [len(example.target) + 1 for example in examples], batching))
    shuffled = torch.randperm(len(groups), generator=generator).tolist()
    return [groups[i] for i in shuffled]


def by_length(lengths: Sequence[int], batching: Batching) -> list[list[int]]:
    """Groups of similar lengths, the longest first, so that running out of memory shows early."""
    order = sorted(range(len(lengths)), key=lambda i: -lengths[i])
    return list(_grouped(order, lengths, batching))


def collate(examples: Sequence[Example]) -> Batch:
    """Examples as one batch."""
    return Batch(
        padded(example.source for example in examples),
        torch.tensor([len(example.source) for example in examples]),
        padded([BEGIN, *example.target] for example in examples),
        padded([*example.target, END] for example in examples),
    )


def padded(rows: Iterable[Sequence[int]]) -> Tensor:
    """Rows of numbers as a matrix, filled up with PAD."""
    rows_list = list(rows)
    longest = max(map(len, rows_list), default=0)
    return torch.tensor([[*row, *[PAD] * (longest - len(row))] for row in rows_list])


def _grouped(
    order: Sequence[int], lengths: Sequence[int], batching: Batching
) -> Iterable[list[int]]:
    group: list[int] = []
    longest = 0
    for i in order:
        longest = max(longest, lengths[i])
        if group and batching.full(len(group) + 1, longest):
            yield group
            group, longest = [], lengths[i]
        group.append(i)
    if group:
        yield group
