"""Why attention is needed: one state is too small

Two translators learn to reverse strings, from the same pairs and for as long. One hands its
decoder the encoder's last state, all there was before attention; the other lets it look back at
every state (Eq. 13). The fixed state has room for short strings only.
"""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import Literal

from rich.console import Console
from rich.table import Table

from qkv.translate import Interpreter, Recipe, Recurrent, Search, Sources, Spelling, begin
from qkv.translate.batches import Batching
from qkv.translate.progress import Silent

LETTERS, LONGEST, PAIRS, EPOCHS = "abcdefgh", 24, 4000, 4
LENGTHS = [(1, 6), (7, 12), (13, 18), (19, 24)]
TESTED = 60  # strings of each range of lengths


def show(console: Console) -> None:
    table = Table("length", "looks back", "fixed state", title="strings reversed without a mistake")
    with tempfile.TemporaryDirectory() as folder:
        with_attention = _trained(Path(folder), "all")
        without = _trained(Path(folder), "last")
    draw = random.Random(7)
    for shortest, longest in LENGTHS:
        texts = [_text(draw, shortest, longest) for _ in range(TESTED)]
        shares = [_share(speaker, texts) for speaker in (with_attention, without)]
        cells = [f"{'█' * round(20 * share):<20} {share:4.0%}" for share in shares]
        table.add_row(f"{shortest} to {longest}", *cells)
    console.print(table)


def _trained(folder: Path, memory: Literal["all", "last"]) -> Interpreter:
    draw = random.Random(5)
    texts = [_text(draw, 1, LONGEST) for _ in range(PAIRS)]
    (folder / "pairs.tsv").write_text("".join(f"{text}\t{text[::-1]}\n" for text in texts))
    session = begin(
        folder / memory,
        Sources(pairs=str(folder / "pairs.tsv")),
        Recurrent(embedding=16, hidden=64, dropout=0.0, memory=memory),
        Spelling("characters", size=20),
        Recipe(
            EPOCHS, learning_rate=6e-3, warmup=30, smoothing=0.0, batching=Batching(600),
            watch="loss",
        ),
        Silent(),
    )  # fmt: skip
    session.training.run()
    return session.training.interpreter


def _text(draw: random.Random, shortest: int, longest: int) -> str:
    return "".join(draw.choices(LETTERS, k=draw.randint(shortest, longest)))


def _share(speaker: Interpreter, texts: list[str]) -> float:
    found = speaker.best(texts, Search(beam=1, max_length=LONGEST + 2))
    return sum(a == b[::-1] for a, b in zip(found, texts, strict=True)) / len(texts)
