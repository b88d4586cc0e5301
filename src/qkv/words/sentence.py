"""The attention between the words of a sentence: by their vectors, or inside a model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from qkv import pooling
from qkv.recording import record
from qkv.similarity import SimilarityLike, as_similarity
from qkv.similarity.log_tempered import LogTempered
from qkv.visualization import summary
from qkv.words.load import glove
from qkv.words.pretrained import minilm, minilm_tokenizer
from qkv.words.vectors import WordVectors

#: Letters and digits, also around an apostrophe or a hyphen: don't, well-known.
_WORD = re.compile(r"\w+(?:['’-]\w+)*")

LAYERS, HEADS = 6, 12  # of MiniLM


class Word(NamedTuple):
    text: str
    start: int
    stop: int


@dataclass(frozen=True)
class SentenceAttention:
    """The words of a sentence, and the attention between them."""

    words: list[str]
    #: Rows are queries, columns are keys, and each row sums to 1.
    weights: npt.NDArray[np.floating[Any]]  # (words, words)
    #: How the weights came about, and what they leave out.
    notes: list[str]
    #: The same of each layer and head, whichever was chosen.
    every: npt.NDArray[np.floating[Any]]  # (layers, heads, words, words)

    def of(self, query: str) -> list[int]:
        """Which rows have this word as the query; upper and lower case are one."""
        rows = [row for row, word in enumerate(self.words) if word.lower() == query.lower()]
        if not rows:
            raise ValueError(f"query must be one of {', '.join(self.words)}; got {query!r}")
        return rows


def words_of(sentence: str) -> list[Word]:
    """The words, without punctuation and spaces."""
    words = [Word(match.group(), *match.span()) for match in _WORD.finditer(sentence)]
    if not words:
        raise ValueError(f"sentence must hold at least one word; got {sentence!r}")
    return words


def by_vectors(
    sentence: str,
    similarity: SimilarityLike = None,
    temperature: float = 1.0,
    vectors: WordVectors | None = None,
) -> SentenceAttention:
    """Self-attention between word vectors: softmax(f(q, k) / T), with vectors as q and k.

    Args:
        sentence: words without a vector are left out.
        similarity: f; the scaled dot product if None.
        temperature: T; the lower, the more the most similar word stands out.
        vectors: those of GloVe if None.
    """
    if not 0 < temperature < float("inf"):
        raise ValueError(f"temperature must be above 0; got {temperature}")
    vectors = glove() if vectors is None else vectors
    chosen = as_similarity(similarity)
    written = [word.text for word in words_of(sentence)]
    words, tokens = vectors.look_up(written, unknown="skip")
    if not words:
        raise ValueError(f"sentence must hold a word that has a vector; got {sentence!r}")
    x = torch.from_numpy(tokens.astype(np.float64))  # (n, d)
    weights = pooling.weights(x, x, similarity=LogTempered(chosen, temperature)).detach().numpy()
    notes = [f"{type(chosen).__name__} of word vectors ({vectors.dim} dimensions)"]
    if temperature != 1:
        notes[0] += f", temperature {temperature:g}"
    if unknown := [word for word in written if word not in vectors]:
        notes.append(f"left out, for lack of a vector: {', '.join(unknown)}")
    return SentenceAttention(words, weights, notes, weights[None, None])


def by_minilm(
    sentence: str, layer: int | None = None, head: int | None = None
) -> SentenceAttention:
    """The attention between words inside MiniLM, a transformer of 6 layers × 12 heads.

    It reads pieces of words, and a special token before and after the sentence. Pieces are merged
    to words, special tokens and punctuation are hidden, and each row is scaled to sum to 1.

    Args:
        sentence: of up to 512 pieces.
        layer: from 0 to 5; the last if None.
        head: from 0 to 11; the mean of all if None.
    """
    for name, chosen, size in (("layer", layer, LAYERS), ("head", head, HEADS)):
        if chosen is not None and not 0 <= chosen < size:
            raise ValueError(f"{name} must be between 0 and {size - 1}; got {chosen}")
    written = words_of(sentence)
    encoding = minilm_tokenizer().encode(sentence)
    if encoding.overflowing:
        raise ValueError("sentence must have at most 512 pieces of words; it has more")
    belongs = [_word_at(start, stop, written) for start, stop in encoding.offsets]
    model = minilm()
    with torch.no_grad(), record(model) as calls:
        model(torch.tensor([encoding.ids]))
        tokens = calls.stacked()  # (layers, heads, tokens, tokens)
    every = summary.merge(tokens, belongs, belongs).double().numpy()
    depth = LAYERS - 1 if layer is None else layer
    heads = slice(None) if head is None else slice(head, head + 1)
    hidden = _hidden(tokens[depth, heads], belongs)
    notes = [
        f"MiniLM, layer {depth}, {'mean of its heads' if head is None else f'head {head}'}",
        "pieces put together to words; marks and punctuation hidden, "
        f"{hidden:.0%} of the attention",
    ]
    return SentenceAttention(
        [word.text for word in written], every[depth, heads].mean(0), notes, every
    )


def _word_at(start: int, stop: int, words: list[Word]) -> int | None:
    """The number of the word that a token is a piece of."""
    for number, word in enumerate(words):
        if word.start <= start < stop <= word.stop:
            return number
    return None


def _hidden(weights: Tensor, belongs: list[int | None]) -> float:
    """The share of the words' attention on tokens that are not words."""
    inside = [token for token, word in enumerate(belongs) if word is not None]
    outside = [token for token, word in enumerate(belongs) if word is None]
    return float(weights[..., inside, :][..., outside].sum(-1).mean())
