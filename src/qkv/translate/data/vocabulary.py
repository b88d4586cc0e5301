"""Sentences to numbers and back: subwords, words or characters."""

from __future__ import annotations

import base64
import io
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any, ClassVar, Literal, NamedTuple, TypeAlias, get_args

from qkv.optional_dependencies import require

#: The numbers that every vocabulary begins with.
PAD, UNKNOWN, BEGIN, END = range(4)
SPECIALS = ["<pad>", "<unk>", "<s>", "</s>"]

Level: TypeAlias = Literal["subwords", "words", "characters"]


class Pieces(NamedTuple):
    """A sentence in pieces: their numbers, how they are written, and whose word each belongs to."""

    numbers: list[int]
    surfaces: list[str]
    words: list[int]


class Vocabulary(ABC):
    """The pieces into which sentences are split. Numbers 0 to 3 are :data:`SPECIALS`."""

    level: ClassVar[Level]

    @abstractmethod
    def __len__(self) -> int:
        """How many pieces there are, the special ones among them."""

    @abstractmethod
    def split(self, text: str) -> Pieces:
        """The pieces of a sentence, without begin and end."""

    @abstractmethod
    def join(self, surfaces: Sequence[str]) -> str:
        """The sentence that these pieces make."""

    @abstractmethod
    def surface(self, number: int) -> str:
        """How a piece is written."""

    def as_word(self, text: str) -> str:
        """A word of another language as a piece of this one."""
        return text

    @abstractmethod
    def words(self, surfaces: Sequence[str]) -> list[int]:
        """To which word of the sentence, counted from 0, each piece belongs."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The state from which :func:`from_json` restores the vocabulary."""


class ListVocabulary(Vocabulary):
    """A vocabulary that is a list of pieces."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = [*SPECIALS, *pieces]
        self._numbers = {piece: number for number, piece in enumerate(self.pieces)}
        if len(self._numbers) != len(self.pieces):
            raise ValueError("pieces must be distinct, and none of " + ", ".join(SPECIALS))

    @classmethod
    def learn(cls, sentences: Iterable[str], size: int) -> ListVocabulary:
        """The most frequent pieces, at most `size` with the special ones."""
        counts = Counter(piece for text in sentences for piece in cls.pieces_of(text))
        for special in SPECIALS:
            counts.pop(special, None)
        # Ties in alphabetical order, so that the same text always gives the same numbers.
        ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        most_frequent = [piece for piece, _ in ranked]
        return cls(most_frequent[: max(0, size - len(SPECIALS))])

    @staticmethod
    @abstractmethod
    def pieces_of(text: str) -> list[str]:
        """The pieces of a sentence, known or not."""

    def __len__(self) -> int:
        return len(self.pieces)

    def split(self, text: str) -> Pieces:
        surfaces = self.pieces_of(text)
        numbers = [self._numbers.get(piece, UNKNOWN) for piece in surfaces]
        # A sentence may hold the letters "</s>"; they do not end it.
        numbers = [UNKNOWN if number <= END else number for number in numbers]
        return Pieces(numbers, surfaces, self.words(surfaces))

    def surface(self, number: int) -> str:
        return self.pieces[number]

    def words(self, surfaces: Sequence[str]) -> list[int]:
        return list(range(len(surfaces)))

    def to_json(self) -> dict[str, Any]:
        return {"level": self.level, "pieces": self.pieces[len(SPECIALS) :]}


class Words(ListVocabulary):
    """Words between spaces.

    >>> words = Words.learn(["to be or not to be"], size=6)
    >>> words.split("to see").numbers, words.surface(5)
    ([5, 1], 'to')
    """

    level = "words"

    @staticmethod
    def pieces_of(text: str) -> list[str]:
        return text.split()

    def join(self, surfaces: Sequence[str]) -> str:
        return " ".join(surfaces)


class Characters(ListVocabulary):
    """Single characters, spaces among them."""

    level = "characters"

    @staticmethod
    def pieces_of(text: str) -> list[str]:
        return list(text)

    def join(self, surfaces: Sequence[str]) -> str:
        return "".join(surfaces)


class Subwords(Vocabulary):
    """Frequent strings of letters, learned by sentencepiece; rare words are spelled in them."""

    level = "subwords"

    def __init__(self, model: bytes) -> None:
        self.model = model
        self._processor = require("sentencepiece", "translate").SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(model)
        except RuntimeError as error:
            raise ValueError("the vocabulary must be a sentencepiece model; it is not") from error

    @classmethod
    def learn(cls, sentences: Iterable[str], size: int) -> Subwords:
        """At most `size` byte-pair subwords; fewer where the text has not so many."""
        sentencepiece, model = require("sentencepiece", "translate"), io.BytesIO()
        try:
            sentencepiece.SentencePieceTrainer.Train(
                sentence_iterator=iter(sentences),
                model_writer=model,
                model_type="bpe",
                vocab_size=size,
                hard_vocab_limit=False,
                normalization_rule_name="identity",  # the text was normalised where it was read
                character_coverage=1.0,
                pad_id=PAD,
                unk_id=UNKNOWN,
                bos_id=BEGIN,
                eos_id=END,
                unk_surface=SPECIALS[UNKNOWN],
                num_threads=1,
                minloglevel=2,
            )
        except RuntimeError as error:
            reason = str(error).strip().splitlines()[-1]
            raise ValueError(
                f"no vocabulary of {size:,} subwords could be learned: {reason}"
            ) from error
        return cls(model.getvalue())

    def __len__(self) -> int:
        return self._processor.GetPieceSize()  # type: ignore[no-any-return]

    def split(self, text: str) -> Pieces:
        surfaces: list[str] = self._processor.EncodeAsPieces(text)
        numbers = [self._processor.PieceToId(piece) for piece in surfaces]
        return Pieces(numbers, surfaces, self.words(surfaces))

    def join(self, surfaces: Sequence[str]) -> str:
        return " ".join("".join(surfaces).replace("▁", " ").split())

    def surface(self, number: int) -> str:
        return self._processor.IdToPiece(number)  # type: ignore[no-any-return]

    def as_word(self, text: str) -> str:
        return "▁" + text

    def words(self, surfaces: Sequence[str]) -> list[int]:
        word_of, word = [], -1
        for surface in surfaces:
            if surface.startswith("▁") or word < 0:
                word += 1
            word_of.append(word)
        return word_of

    def to_json(self) -> dict[str, Any]:
        return {"level": self.level, "model": base64.b64encode(self.model).decode("ascii")}


def learn(level: Level, sentences: Sequence[str], size: int) -> Vocabulary:
    """A vocabulary of this level, learned from sentences."""
    if level == "subwords":
        return Subwords.learn(sentences, size)
    if level == "words":
        return Words.learn(sentences, size)
    if level == "characters":
        return Characters.learn(sentences, size)
    raise ValueError(f"level must be one of {', '.join(get_args(Level))}; got {level!r:.80}")


def from_json(state: dict[str, Any]) -> Vocabulary:
    """The vocabulary that :meth:`Vocabulary.to_json` described."""
    if state["level"] == "subwords":
        return Subwords(base64.b64decode(state["model"]))
    kind = {"words": Words, "characters": Characters}[state["level"]]
    return kind(state["pieces"])
