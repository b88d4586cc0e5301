"""Text to text: a model, and the vocabularies of the two languages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.translate.data.batches import Batching, by_length, padded
from qkv.translate.data.text import Form, normalized
from qkv.translate.data.vocabulary import END, UNKNOWN, Pieces, Vocabulary
from qkv.translate.decoding.alignment import Alignment, merged
from qkv.translate.decoding.search import Hypothesis, Search, search
from qkv.translate.models.base import Model

#: Sentences searched together.
_TOGETHER = Batching(sentences=64)


class Translation(NamedTuple):
    text: str
    score: float
    alignment: Alignment  # piece by piece; see merged() for words


class Interpreter:
    """A model with its vocabularies: sentences in, translations out.

    Args:
        model: what translates numbers.
        source: the vocabulary read.
        target: the vocabulary written.
        form: how source text is normalised, as it was in training.
    """

    def __init__(
        self, model: Model[Any, Any], source: Vocabulary, target: Vocabulary, form: Form = "nfc"
    ) -> None:
        self.model, self.source, self.target, self.form = model, source, target, form

    def translate(
        self, sentences: Sequence[str], how: Search | None = None
    ) -> list[list[Translation]]:
        """The best translations of each sentence, the best first."""
        how = Search() if how is None else how
        pieces = [self.source.split(normalized(text, self.form)) for text in sentences]
        translations: list[list[Translation]] = [[] for _ in pieces]
        training = self.model.training
        self.model.eval()
        try:
            for group in by_length([len(each.numbers) for each in pieces], _TOGETHER):
                rows = [[*pieces[i].numbers, END] for i in group]
                lengths = torch.tensor([len(row) for row in rows])
                device = self.model.output.weight.device
                answers = search(self.model, padded(rows).to(device), lengths.to(device), how)
                for i, hypotheses in zip(group, answers, strict=True):
                    translations[i] = [self._spelled(pieces[i], each) for each in hypotheses]
        finally:
            self.model.train(training)
        return translations

    def best(self, sentences: Sequence[str], how: Search | None = None) -> list[str]:
        """The text of the best translation of each sentence."""
        return [translations[0].text for translations in self.translate(sentences, how)]

    def words(self, translation: Translation) -> Alignment:
        """The attention of each word of a translation, the end of the source last."""
        source_words = self.source.words(translation.alignment.source[:-1])
        return merged(
            translation.alignment,
            [*source_words, max(source_words, default=-1) + 1],
            self.target.words(translation.alignment.target),
            self.source.join,
            self.target.join,
        )

    def _spelled(self, pieces: Pieces, hypothesis: Hypothesis) -> Translation:
        weights = hypothesis.weights[: len(hypothesis.tokens)]
        surfaces = [
            self._copied(pieces, row) if token == UNKNOWN else self.target.surface(token)
            for token, row in zip(hypothesis.tokens, weights, strict=True)
        ]
        alignment = Alignment([*pieces.surfaces, "⏎"], surfaces, weights)
        return Translation(self.target.join(surfaces), hypothesis.score, alignment)

    def _copied(self, pieces: Pieces, weights: Tensor) -> str:
        """The source word with the largest weight for an unknown token, as it was written."""
        if not pieces.surfaces:
            return self.target.surface(UNKNOWN)
        attended = int(weights[: len(pieces.surfaces)].argmax())
        word = pieces.words[attended]
        pieces_of_word = [
            s for s, w in zip(pieces.surfaces, pieces.words, strict=True) if w == word
        ]
        return self.target.as_word(self.source.join(pieces_of_word))
