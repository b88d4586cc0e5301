"""Why attention is needed: one state is too small

Two translators learn to reverse strings, from the same pairs and for the same time. One passes the
encoder's last state to its decoder, as all models did before attention; the other lets it attend to
every state (Eq. 13). The fixed state is large enough for short strings only.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any, Literal

from qkv.gallery.parts import Code, Figure, Part, Result, Step, Table
from qkv.gallery.training import trained
from qkv.translate import Interpreter, RNNConfig, Search, TokenizerConfig, TrainingConfig
from qkv.translate.data.batches import Batching
from qkv.visualization import plot
from qkv.visualization.plot import palette

SOURCE = "The Bahdanau Attention Mechanism; Eq. 13"
LETTERS, LONGEST, PAIRS, EPOCHS = "abcdefgh", 20, 3500, 5
LENGTHS = [(1, 5), (6, 10), (11, 15), (16, 20)]
TESTED = 60  # strings of each range of lengths
WAYS: dict[Literal["all", "last"], str] = {"all": "looks back", "last": "fixed state"}


def parts() -> Iterator[Part]:
    draw = random.Random(5)
    pairs = [(text, text[::-1]) for text in (_text(draw, 1, LONGEST) for _ in range(PAIRS))]
    speakers = []
    for memory, name in WAYS.items():
        yield Step(f"training the translator that {name}" if memory == "all" else
                   "training the translator with a fixed state")  # fmt: skip
        sizes = RNNConfig(embedding=16, hidden=64, dropout=0.0, memory=memory)
        recipe = TrainingConfig(EPOCHS, learning_rate=6e-3, warmup=30, smoothing=0.0,
                        batching=Batching(600), watch="loss")  # fmt: skip
        speakers.append(trained(pairs, sizes, TokenizerConfig("characters", size=20), recipe)[0])
    yield Step("testing")
    draw = random.Random(7)
    shares: list[list[float]] = []
    for shortest, longest in LENGTHS:
        texts = [_text(draw, shortest, longest) for _ in range(TESTED)]
        shares.append([_share(speaker, texts) for speaker in speakers])
    yield Result(
        f"strings of {LENGTHS[-1][0]} to {LENGTHS[-1][1]} letters reversed: {shares[-1][0]:.0%} "
        f"looking back, {shares[-1][1]:.0%} from a fixed state"
    )
    names = [f"{shortest} to {longest}" for shortest, longest in LENGTHS]
    yield Figure(_draw(names, shares), "Strings reversed without a mistake, by their length")
    yield Table(
        ["length", *WAYS.values()],
        [
            [name, *(f"{'█' * round(20 * share):<20} {share:4.0%}" for share in row)]
            for name, row in zip(names, shares, strict=True)
        ],
        "Strings reversed without a mistake",
    )
    yield Code(
        "from qkv.translate import RNNConfig\n\n"
        'RNNConfig(hidden=64, memory="all")   # looks back at every state\n'
        'RNNConfig(hidden=64, memory="last")  # has the last state only'
    )


def _text(draw: random.Random, shortest: int, longest: int) -> str:
    return "".join(draw.choices(LETTERS, k=draw.randint(shortest, longest)))


def _share(speaker: Interpreter, texts: list[str]) -> float:
    spoken = speaker.best(texts, Search(beam=1, max_length=LONGEST + 2))
    return sum(a == b[::-1] for a, b in zip(spoken, texts, strict=True)) / len(texts)


def _draw(names: list[str], shares: list[list[float]]) -> Any:
    figure = plot.canvas.new(5.2, 2.4)
    axes = plot.canvas.tidy(figure.subplots())
    for side, (way, colour) in enumerate(
        zip(WAYS.values(), (palette.ANSWER, palette.MUTED), strict=True)
    ):
        heights = [100 * row[side] for row in shares]
        places = [place + 0.38 * side - 0.19 for place in range(len(names))]
        bars = axes.bar(places, heights, 0.34, color=colour, label=way)
        axes.bar_label(bars, [f"{height:.0f}" for height in heights], padding=2, fontsize=9)
    axes.set_xticks(range(len(names)), names)
    axes.set_xlabel("letters", fontsize=9)
    axes.set_ylabel("% without a mistake", fontsize=9)
    axes.set_ylim(0, 115)
    axes.set_yticks([0, 50, 100])
    axes.legend(frameon=False, fontsize=9, ncols=2, loc="lower right", bbox_to_anchor=(1, 1))
    return figure
