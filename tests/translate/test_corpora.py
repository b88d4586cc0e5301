"""Real pairs, where the environment variable QKV_DATA names a folder that holds them."""

from __future__ import annotations

import math
import os
from collections import Counter
from pathlib import Path

import pytest

from qkv.translate import RNNConfig, Sources, TokenizerConfig, TrainingConfig, begin
from qkv.translate.data.batches import Batching
from qkv.translate.data.sources import held_out
from qkv.translate.data.text import read_pairs, read_parallel
from qkv.translate.data.vocabulary import END
from qkv.translate.training.callbacks import NullCallback


def corpus(name: str) -> Path:
    folder = Path(os.environ.get("QKV_DATA", "")) / name
    if "QKV_DATA" not in os.environ or not folder.is_dir():
        pytest.skip(f"QKV_DATA names no folder that holds {name}")
    return folder


def test_multi30k_is_read_whole() -> None:
    folder = corpus("multi30k")
    for name, end, count in (("train", ".gz", 29_000), ("val", "", 1014)):
        read = read_parallel(folder / f"{name}.en{end}", folder / f"{name}.de{end}")
        assert len(read.pairs) == count
        assert not len(read.skipped)


def test_tatoeba_is_split_by_distinct_sentence() -> None:
    pairs = read_pairs(corpus("tatoeba") / "fra.txt.gz")
    assert len(pairs.pairs) + len(pairs.skipped) == 167_130
    assert not any(sign in pair.target for pair in pairs.pairs for sign in "\u00a0\u202f")
    training, valid = held_out(pairs)
    assert len(training.pairs) + len(valid) == len(pairs.pairs)
    assert not {pair.source for pair in training.pairs} & {pair.source for pair in valid}


def test_multi30k_is_learned_in_a_few_steps(tmp_path: Path) -> None:
    """The first thousand captions: after two epochs, better than the words' frequencies alone."""
    folder = corpus("multi30k")
    sources = Sources(*(str(folder / f"val.{side}") for side in ("en", "de", "en", "de")))
    sizes = RNNConfig(embedding=32, hidden=48, dropout=0.1, tied=True)
    recipe = TrainingConfig(
        epochs=2, learning_rate=5e-3, warmup=20, batching=Batching(tokens=600), watch="loss"
    )
    made = begin(
        tmp_path / "model", sources, sizes, TokenizerConfig(size=1000), recipe, NullCallback()
    )
    progress = made.training.run()
    said = Counter(token for each in made.training.examples for token in (*each.target, END))
    total = said.total()
    by_frequency = -sum(count / total * math.log(count / total) for count in said.values())
    assert progress.best is not None
    assert -progress.best < by_frequency - 0.3
