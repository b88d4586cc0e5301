"""The Bahdanau translator: dates of fifteen languages to ISO dates

A small recurrent network reads a date character by character and writes it anew, looking back at
every step (Eq. 13). The figures show what each character it wrote looked at: year, month and day
find their sources in whatever order the language has them. Days it is tested on were never seen
in any language. `qkv translate train --demo dates` trains it longer.
"""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

from qkv.translate import Interpreter, Search, Translation, begin, dates
from qkv.translate.progress import Silent
from qkv.translate.session import DATES
from qkv.translate.sources import Sources

PAIRS, EPOCHS, TESTED = 9000, 3, 300
SHADES = " ░▒▓█"
SHOWN = ["Donnerstag, 14. März 2024", "2 juillet 1969", "2024年3月14日木曜日"]


def show(console: Console) -> None:
    interpreter = _trained()
    tested = dates.pairs(TESTED, seed=4, held_out=True).pairs
    found = interpreter.best([pair.source for pair in tested], Search(beam=1))
    right = sum(text == pair.target for text, pair in zip(found, tested, strict=True))
    console.print(f"{right} of {TESTED} held-out dates are translated without a mistake")
    for (best,) in interpreter.translate(SHOWN):
        console.print()
        console.print(_picture(best))


def _trained() -> Interpreter:
    sizes, spelling, recipe = DATES
    corpus = dates.pairs(PAIRS, seed=3)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "dates.tsv"
        file.write_text("".join(f"{a}\t{b}\n" for a, b in corpus.pairs), encoding="utf-8")
        session = begin(
            Path(folder) / "model",
            Sources(pairs=str(file)),
            sizes,
            spelling,
            dataclasses.replace(recipe, epochs=EPOCHS),
            Silent(),
        )
        session.training.run()
    return session.training.interpreter


def _picture(translation: Translation) -> Text:
    """Rows of what was written, columns of what was read; the darker, the more looked at."""
    source, target, weights = translation.alignment
    picture = Text("    " + " ".join(source))
    for letter, row in zip(target, weights.tolist(), strict=True):
        picture.append(f"\n{letter:>2}  ")
        for label, weight in zip(source, row, strict=True):
            shade = SHADES[min(len(SHADES) - 1, int(weight * len(SHADES)))]
            picture.append(shade * Text(label).cell_len, style="green")
            picture.append(" ")
    return picture
