"""`python -m qkv.explore.training FOLDER`: train the date translator, printing its progress.

A separate process, so that requests do not wait for training, and that it can be killed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from qkv.translate import Sources, begin
from qkv.translate.data import dates
from qkv.translate.training.setup import DATES
from qkv.translate.training.train import Epoch, TrainingState

#: Steps between two lines.
EVERY = 5


class Teller:
    """Writes the progress of training to standard output, as lines of JSON."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def step(self, progress: TrainingState, batches: int, tokens: int) -> None:
        if progress.step % EVERY == 0:
            done = (progress.epoch + progress.batch / batches) / self.epochs
            loss = progress.loss / max(1, progress.tokens)
            _tell({"step": progress.step, "loss": loss, "share": done})

    def epoch(self, progress: TrainingState, result: Epoch) -> None:
        _tell({"epoch": result.number, "exact": result.exact, "valid_loss": result.valid_loss})


def train(folder: Path, pairs: int, epochs: int) -> None:
    sizes, tokenizer, recipe = DATES
    recipe = dataclasses.replace(recipe, epochs=epochs)
    with tempfile.TemporaryDirectory(prefix="qkv-explore-") as place:
        file = Path(place) / "dates.tsv"
        corpus = dates.pairs(pairs, seed=1)
        file.write_text("".join(f"{a}\t{b}\n" for a, b in corpus.pairs), encoding="utf-8")
        sources = Sources(pairs=str(file))
        begin(folder, sources, sizes, tokenizer, recipe, Teller(epochs)).training.run()


def _tell(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    if hasattr(os, "nice"):
        os.nice(10)  # requests have priority
    train(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
