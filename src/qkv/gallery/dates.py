"""The Bahdanau translator: dates of fifteen languages to ISO dates

A small recurrent network reads a date character by character and writes it as an ISO date, with
attention to the source at every step (Eq. 13). The alignments show which characters each output
attends to: year, month and day find their sources in whatever order the language has them. Days in
the test set do not occur in training, in any language. It is trained for seconds here;
`qkv translate train --demo dates` trains longer.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np

from qkv.gallery.parts import Code, Figure, Part, Result, Step, Table
from qkv.gallery.training import Curve, trained
from qkv.translate import Search
from qkv.translate.data import dates
from qkv.translate.training.setup import DATES
from qkv.visualization import plot
from qkv.visualization.plot import palette

SOURCE = "The Bahdanau Attention Mechanism; Eqs. 12 and 13"
PAIRS, EPOCHS, TESTED = 9000, 3, 300
SHOWN = ["Donnerstag, 14. März 2024", "2 juillet 1969", "October 31, 1992", "2024年3月14日"]
DRAWN = SHOWN[:2]


def parts() -> Iterator[Part]:
    sizes, tokenizer, recipe = DATES
    yield Step(f"writing {PAIRS:,} dates in fifteen languages")
    corpus = dates.pairs(PAIRS, seed=3)
    yield Step("training the translator")
    recipe = dataclasses.replace(recipe, epochs=EPOCHS)
    interpreter, curve = trained(corpus.pairs, sizes, tokenizer, recipe)
    yield Step("translating dates it never saw")
    tested = dates.pairs(TESTED, seed=4, held_out=True).pairs
    translations = interpreter.best([pair.source for pair in tested], Search(beam=1))
    right = sum(text == pair.target for text, pair in zip(translations, tested, strict=True))
    yield Result(f"{right} of {TESTED} held-out dates without a mistake, {PAIRS:,} pairs, "
                 f"{EPOCHS} epochs")  # fmt: skip
    best = [each[0] for each in interpreter.translate(SHOWN)]
    for text, translation in list(zip(SHOWN, best, strict=True))[: len(DRAWN)]:
        source, target, weights = translation.alignment
        yield Figure(
            plot.alignment(weights.numpy(), source, target),
            f"What each character of “{translation.text}” looked at in “{text}”",
        )
    yield Figure(_draw(curve), "The training curve: loss of each character, a running mean of 10")
    yield Table(["read", "written"], [[a, b.text] for a, b in zip(SHOWN, best, strict=True)])
    yield Code(
        "# in a shell, trained longer and kept:\n"
        "# qkv translate train --demo dates --out dates/\n"
        "import qkv\n\n"
        'interpreter = qkv.translate.load("dates/")\n'
        'best = interpreter.translate(["Donnerstag, 14. März 2024"])[0][0]\n'
        "best.text, best.alignment"
    )


def _draw(curve: Curve) -> Any:
    figure = plot.canvas.new(5.2, 2.0)
    axes = plot.canvas.tidy(figure.subplots())
    span = min(10, len(curve.losses))
    smooth = np.convolve(curve.losses, np.ones(span) / span, mode="valid")
    axes.plot(curve.steps, curve.losses, color=palette.LINE, lw=0.8)
    axes.plot(curve.steps[span - 1 :], smooth, color=palette.ANSWER, lw=1.8)
    axes.set_yscale("log")
    axes.minorticks_off()
    axes.set_xlabel("step", fontsize=9)
    axes.set_ylabel("loss", fontsize=9)
    return figure
