"""The blank in "the dog was ___", filled from context

"When he saw his owner, the dog was ___, so he wagged his tail." The context is the query, twelve
words are the keys. Two ways, both reported unedited. Word vectors: the mean of saw, owner, dog,
wagged and tail is the query, the words' vectors are the keys. MiniLM: the rest of the sentence is
the query, "the dog was happy", "the dog was sad" and so on are the keys. Neither was trained to
fill blanks, and it shows: word vectors prefer words that often occur near dogs and tails, and
MiniLM, which compares topics, finds a glad dog but hardly distinguishes it from a sad one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qkv.gallery.parts import Figure, Part, Result, Step, Table, code_of
from qkv.visualization import plot
from qkv.visualization.plot import palette

SOURCE = "Self Attention, Intuition"


def fill() -> Any:
    import torch

    import qkv
    from qkv.words.pretrained import minilm, minilm_tokenizer

    listed = "happy excited glad proud hungry tired sad angry afraid asleep blue expensive"
    words = listed.split()
    cosine = qkv.Cosine(temperature=0.1)

    glove = qkv.words.glove()
    context = glove.look_up(["saw", "owner", "dog", "wagged", "tail"]).vectors.mean(0)
    keys = glove.look_up(words).vectors
    by_vectors = qkv.weights(context[None], keys, similarity=cosine)[0]

    model, tokenizer = minilm(), minilm_tokenizer()

    def meaning(text: str) -> torch.Tensor:
        with torch.no_grad():
            states: torch.Tensor = model(torch.tensor([tokenizer.encode(text).ids]))
        return states[0].mean(0)

    rest = meaning("When he saw his owner, so he wagged his tail")
    clauses = torch.stack([meaning(f"the dog was {word}") for word in words])
    by_minilm = qkv.weights(rest[None], clauses, similarity=cosine)[0]
    return words, by_vectors.tolist(), by_minilm.tolist()


def parts() -> Iterator[Part]:
    yield Step("loading word vectors and MiniLM")
    words, *ways = fill()
    ranked = [
        [word for _, word in sorted(zip(way, words, strict=True), reverse=True)] for way in ways
    ]
    places = [1 + order.index("happy") for order in ranked]
    yield Result(
        f"first choice: {ranked[0][0]} (word vectors), {ranked[1][0]} (MiniLM); happy comes "
        f"{_nth(places[0])} and {_nth(places[1])} of {len(words)}"
    )
    yield Figure(_draw(words, ways), "Weights of twelve words for the blank, two ways")
    rows = [
        [_nth(place + 1), *(f"{order[place]} {way[words.index(order[place])]:.2f}"
                            for order, way in zip(ranked, ways, strict=True))]
        for place in range(6)
    ]  # fmt: skip
    yield Table(["", "word vectors", "MiniLM"], rows)
    yield code_of(fill)


def _nth(place: int) -> str:
    return {1: "1st", 2: "2nd", 3: "3rd"}.get(place, f"{place}th")


def _draw(words: list[str], ways: list[list[float]]) -> Any:
    figure = plot.canvas.new(5.2, 3.0)
    panels = figure.subplots(1, 2, sharey=True)
    for axes, way, name in zip(panels, ways, ("word vectors", "MiniLM"), strict=True):
        colours = [palette.ANSWER if word == "happy" else palette.WEIGHT for word in words]
        plot.canvas.tidy(axes).barh(words, way, color=colours, height=0.65)
        axes.set_title(name, fontsize=10, color=palette.MUTED)
        axes.set_xlabel("weight", fontsize=9)
        axes.tick_params(axis="y", length=0, labelcolor=palette.KEY)
    axes.invert_yaxis()
    return figure
