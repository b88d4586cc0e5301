"""Sentences to numbers and back."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qkv.translate.data import vocabulary
from qkv.translate.data.vocabulary import END, SPECIALS, UNKNOWN, Characters, Level, Subwords, Words

TEXT = [
    "a man in an orange hat starring at something .",
    "a boston terrier is running on lush green grass in front of a white fence .",
    "a girl in karate uniform breaking a stick with a front kick .",
]


@pytest.mark.parametrize("level", ["subwords", "words", "characters"])
def test_what_was_learned_comes_back_and_survives_json(level: Level) -> None:
    made = vocabulary.learn(level, TEXT, size=120)
    again = vocabulary.from_json(json.loads(json.dumps(made.to_json())))
    for text in TEXT:
        pieces = made.split(text)
        assert pieces == again.split(text)
        assert made.join(pieces.surfaces) == text
        assert [made.surface(number) for number in pieces.numbers] == pieces.surfaces
        assert all(END < number < len(made) for number in pieces.numbers)
        assert len(pieces.words) == len(pieces.numbers)
    assert [made.surface(number) for number in range(4)] == SPECIALS


def test_the_most_frequent_words_are_kept_and_others_unknown() -> None:
    words = Words.learn(["b a a c c c", "a"], size=6)
    assert [words.surface(i) for i in (4, 5)] == ["a", "c"]
    assert words.split("c b").numbers == [5, UNKNOWN]
    assert words.split("c b").surfaces == ["c", "b"]


def test_text_cannot_speak_the_special_pieces() -> None:
    words = Words.learn(["</s> <pad> x </s>"], size=10)
    assert len(words) == 5
    assert words.split("</s> x <pad>").numbers == [UNKNOWN, 4, UNKNOWN]
    subwords = Subwords.learn(TEXT, size=60)
    assert END not in subwords.split("</s> <pad>").numbers


def test_pieces_know_their_words() -> None:
    subwords = Subwords.learn(TEXT, size=60)
    pieces = subwords.split("a terrier")
    assert len(pieces.numbers) > 2
    assert pieces.words == [0] + [1] * (len(pieces.numbers) - 1)
    assert Words(["a"]).split("a a b").words == [0, 1, 2]


@given(st.text(st.sampled_from("ab ▁</s>é"), max_size=20))
def test_words_of_pieces_rise_by_one(text: str) -> None:
    clean = " ".join(text.split())
    subwords = _SUBWORDS
    words = subwords.split(clean).words
    assert words[:1] in ([], [0])
    assert all(after - before in (0, 1) for before, after in pairwise(words))


_SUBWORDS = Subwords.learn(TEXT, size=60)


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"^level must be one of subwords, words, characters; got"):
        vocabulary.learn("syllables", TEXT, 10)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^the vocabulary must be a sentencepiece model"):
        Subwords(b"not a model")
    with pytest.raises(ValueError, match=r"^pieces must be distinct"):
        Characters(["a", "a"])
    with pytest.raises(ValueError, match=r"^no vocabulary of 5 subwords could be learned"):
        Subwords.learn(TEXT, size=5)
