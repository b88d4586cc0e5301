"""A translation that a small model learns in seconds: a string, reversed."""

from __future__ import annotations

import random
from pathlib import Path

from qkv.translate import RNNConfig, Sources, TokenizerConfig, TrainingConfig, begin
from qkv.translate.data.batches import Batching
from qkv.translate.training.callbacks import NullCallback
from qkv.translate.training.setup import Session

SIZES = RNNConfig(embedding=16, hidden=32, dropout=0.0)
TOKENIZER = TokenizerConfig("characters", size=20, joint=True)
RECIPE = TrainingConfig(
    epochs=2,
    learning_rate=1e-2,
    warmup=20,
    smoothing=0.0,
    batching=Batching(sentences=32),
    watch="exact",
    seed=3,
)


def write_pairs(folder: Path, count: int = 400, longest: int = 6) -> Sources:
    """Files of random strings and their reverses, to train and to validate on."""
    draw = random.Random(1)

    def lines(number: int) -> str:
        texts = ("".join(draw.choices("abcde", k=draw.randint(1, longest))) for _ in range(number))
        return "".join(f"{text}\t{text[::-1]}\n" for text in texts)

    (folder / "train.tsv").write_text(lines(count))
    (folder / "valid.tsv").write_text(lines(50))
    return Sources(pairs=str(folder / "train.tsv"), valid_pairs=str(folder / "valid.tsv"))


def begun(folder: Path, **options: object) -> Session:
    """A training on reversed strings in `folder`/model."""
    parts = {
        "sizes": SIZES,
        "tokenizer": TOKENIZER,
        "recipe": RECIPE,
        "callback": NullCallback(),
        **options,
    }
    return begin(folder / "model", write_pairs(folder), **parts)  # type: ignore[arg-type]
