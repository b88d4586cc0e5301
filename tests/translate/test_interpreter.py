"""Text to text: unknown words, alignments of pieces and of words."""

from __future__ import annotations

import pytest
import torch

from qkv.translate import Alignment, Interpreter, RNNConfig, Search, Translator
from qkv.translate.data.vocabulary import UNKNOWN, Subwords, Words
from qkv.translate.decoding.alignment import merged
from qkv.translate.decoding.search import Hypothesis

TEXT = ["the quick brown fox", "jumps over the lazy dog", "pack my box with five dozen jugs"]


def interpreter(level: type[Words] | type[Subwords], size: int) -> Interpreter:
    torch.manual_seed(0)
    vocabulary = level.learn(TEXT, size)
    sizes = RNNConfig(embedding=8, hidden=8, dropout=0.0)
    model = Translator(sizes, len(vocabulary), len(vocabulary))
    return Interpreter(model, vocabulary, vocabulary)


def test_an_unknown_word_is_the_source_word_most_attended_to() -> None:
    speaker = interpreter(Words, 100)
    pieces = speaker.source.split("the Zwölfton dog")
    weights = torch.tensor([[0.8, 0.1, 0.1, 0.0], [0.1, 0.4, 0.0, 0.5], [0.2, 0.2, 0.6, 0.0]])
    lazy = speaker.target.split("lazy").numbers[0]
    found = Hypothesis([lazy, UNKNOWN], -1.0, -1.0, weights)
    translation = speaker._spelled(pieces, found)
    assert translation.text == "lazy Zwölfton"  # the surface; the end of the source is no word
    assert translation.alignment.source == ["the", "Zwölfton", "dog", "⏎"]


def test_an_unknown_subword_is_a_whole_word() -> None:
    speaker = interpreter(Subwords, 60)
    pieces = speaker.source.split("the q☃k fox")
    snow = next(i for i, surface in enumerate(pieces.surfaces) if "☃" in surface)
    weights = torch.zeros(2, len(pieces.surfaces) + 1)
    weights[0, snow] = 1.0
    assert speaker._spelled(pieces, Hypothesis([UNKNOWN], 0.0, 0.0, weights)).text == "q☃k"


def test_words_are_looked_at_as_their_pieces_together_and_look_as_theirs_on_average() -> None:
    pieces = Alignment(
        ["a", "b", "c", "⏎"],
        ["x", "y", "z"],
        torch.tensor([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1], [0.7, 0.1, 0.1, 0.1]]),
    )
    words = merged(pieces, [0, 0, 1, 2], [0, 0, 1], "".join, "".join)
    assert (words.source, words.target) == (["ab", "c", "⏎"], ["xy", "z"])
    torch.testing.assert_close(words.weights, torch.tensor([[0.5, 0.25, 0.25], [0.8, 0.1, 0.1]]))


def test_a_translation_of_no_pieces_has_no_words() -> None:
    pieces = Alignment(["a", "⏎"], [], torch.zeros(0, 2))
    words = merged(pieces, [0, 1], [], "".join, "".join)
    assert (words.source, words.target, words.weights.shape) == (["a", "⏎"], [], (0, 2))


@pytest.mark.parametrize("beam", [1, 4])
def test_subwords_merge_to_words_whose_weights_sum_to_one(beam: int) -> None:
    speaker = interpreter(Subwords, 60)
    ((best,),) = speaker.translate(["the quick  dog"], Search(beam, max_length=8))
    words = speaker.words(best)
    assert words.source == ["the", "quick", "dog", "⏎"]
    assert words.target == best.text.split()
    assert words.weights.shape == (len(words.target), 4)
    torch.testing.assert_close(words.weights.sum(1), torch.ones(len(words.target)))


def test_sentences_come_back_in_their_order_and_training_goes_on() -> None:
    speaker = interpreter(Words, 100)
    speaker.model.train()
    texts = ["the dog", "pack my box with five", "", "fox"]
    together = speaker.best(texts, Search(beam=2, max_length=6))
    assert together == [speaker.best([text], Search(beam=2, max_length=6))[0] for text in texts]
    assert speaker.model.training
