"""The dog sentence: each word takes its turn as the query

"When he saw his owner, the dog was happy, so he wagged his tail". To guess the word "happy", one
looks at the owner, the dog, the wagging and the tail. With word vectors, which are the same in
every sentence, a word mostly attends to itself and to words of similar meaning. In a trained head
of MiniLM, where states depend on the sentence, "happy" attends to tail, wagging and dog.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qkv.gallery.parts import Code, Figure, Part, Result, Step, Table, code_of
from qkv.visualization import plot

SOURCE = "Self Attention, Intuition"
SENTENCE = "When he saw his owner, the dog was happy, so he wagged his tail"
QUERY = "happy"


def read() -> Any:
    from qkv.words.sentence import by_minilm, by_vectors

    sentence = "When he saw his owner, the dog was happy, so he wagged his tail"
    vectors = by_vectors(sentence)
    model = by_minilm(sentence, layer=5, head=11)
    return vectors, model


def parts() -> Iterator[Part]:
    yield Step("loading word vectors and MiniLM")
    ways = vectors, model = read()
    row = model.of(QUERY)[0]
    best = sorted(zip(model.words, model.weights[row], strict=True), key=lambda pair: -pair[1])
    yield Result(f"happy looks at {', '.join(f'{word} {w:.2f}' for word, w in best[:3])} (MiniLM)")
    for looking, name in zip(ways, ("word vectors", "MiniLM, layer 5, head 11"), strict=True):
        yield Figure(
            plot.matrix(looking.weights, looking.words, looking.words, title=name),
            f"Every word asks every word: {'; '.join(looking.notes)}",
        )
    yield Figure(
        plot.row(model.weights[row], model.words, query=QUERY),
        "One row of that matrix: what “happy” looks at in MiniLM",
    )
    yield Table(
        ["key", *(f"{name}" for name in ("word vectors", "MiniLM 5.11"))],
        [
            [word, f"{vectors.weights[row, place]:.2f}", f"{model.weights[row, place]:.2f}"]
            for place, word in enumerate(model.words)
        ],
        "What “happy” looks at",
    )
    yield code_of(read)
    yield Code(
        "# the same in a shell, with a page to explore:\n"
        f'# qkv sentence "{SENTENCE}" --model minilm --layer 5 --head 11 --html dog.html'
    )
