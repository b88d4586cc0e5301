"""Batches: every example once, little padding, an order that only the seed decides."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from qkv.translate.data.batches import Batching, Example, collate, encode, epoch
from qkv.translate.data.text import Corpus, Pair, SkippedLines
from qkv.translate.data.vocabulary import BEGIN, END, PAD, Words

examples = st.lists(
    st.builds(
        lambda s, t: Example([5] * s + [END], [6] * t), st.integers(0, 30), st.integers(0, 30)
    ),
    min_size=1,
    max_size=60,
)


@given(examples, st.integers(1, 100), st.integers(0, 5))
def test_every_example_comes_once_in_batches_no_larger_than_told(
    given_examples: list[Example], tokens: int, seed: int
) -> None:
    groups = epoch(given_examples, Batching(tokens), seed)
    assert sorted(i for group in groups for i in group) == list(range(len(given_examples)))
    assert groups == epoch(given_examples, Batching(tokens), seed)
    for group in groups:
        longest = max(len(given_examples[i].target) + 1 for i in group)
        assert len(group) == 1 or len(group) * longest <= tokens


def test_seeds_give_orders() -> None:
    many = [Example([5, END], [6] * (i % 7)) for i in range(100)]
    assert epoch(many, Batching(20), 1) != epoch(many, Batching(20), 2)
    assert {len(group) for group in epoch(many, Batching(sentences=16), 1)} == {16, 4}


def test_what_the_decoder_reads_is_what_it_should_say_one_step_later() -> None:
    batch = collate([Example([7, 8, END], [4, 5]), Example([9, END], [6])])
    assert batch.source.tolist() == [[7, 8, END], [9, END, PAD]]
    assert batch.lengths.tolist() == [3, 2]
    assert batch.inputs.tolist() == [[BEGIN, 4, 5], [BEGIN, 6, PAD]]
    assert batch.labels.tolist() == [[4, 5, END], [6, END, PAD]]
    assert batch.tokens == 5
    assert batch.to(torch.device("cpu")).tokens == 5


def test_long_pairs_are_left_out_by_line() -> None:
    words = Words(["a", "b"])
    corpus = Corpus(
        [Pair("a", "b"), Pair("a a a", "b"), Pair("a", "b b b")],
        [1, 4, 9],
        SkippedLines({"x": [2]}),
    )
    found, skipped = encode(corpus, words, words, max_length=2)
    assert found == [Example([4, END], [5])]
    assert skipped.lines == {"x": [2], "of more than 2 pieces": [4, 9]}
    assert corpus.skipped.lines == {"x": [2]}
    with pytest.raises(ValueError, match=r"^at least one pair must have no more than 0 pieces"):
        encode(corpus, words, words, max_length=0)


def test_a_batch_holds_something() -> None:
    with pytest.raises(ValueError, match=r"^tokens of a batch must be at least 1; got 0$"):
        Batching(0)
