"""From files to a training session, new or resumed."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import torch

from qkv.translate.data import vocabulary
from qkv.translate.data.batches import Batching, encode
from qkv.translate.data.sources import Sources
from qkv.translate.data.text import Corpus, SkippedLines
from qkv.translate.data.vocabulary import Level
from qkv.translate.decoding.interpreter import Interpreter
from qkv.translate.models.factory import model_of
from qkv.translate.models.recurrent import RNNConfig
from qkv.translate.models.transformer import TransformerConfig
from qkv.translate.training.checkpoint import Checkpoint
from qkv.translate.training.ranks import SingleProcess
from qkv.translate.training.train import Callback, Training, TrainingConfig


@dataclass(frozen=True)
class TokenizerConfig:
    """How sentences are tokenized: the level, the number of pieces, one vocabulary or two."""

    level: Level = "subwords"
    size: int = 8000
    joint: bool = True
    max_length: int = 100

    def learn(self, corpus: Corpus) -> tuple[vocabulary.Vocabulary, vocabulary.Vocabulary]:
        """The source's and the target's vocabulary."""
        sources, targets = zip(*corpus.pairs, strict=True)
        if self.joint:
            both = vocabulary.learn(self.level, [*sources, *targets], self.size)
            return both, both
        return (
            vocabulary.learn(self.level, sources, self.size),
            vocabulary.learn(self.level, targets, self.size),
        )


#: What `--demo dates` is trained with: characters, and a small model.
DATES = (
    RNNConfig(embedding=64, hidden=128, dropout=0.0, features=64),
    TokenizerConfig("characters", size=1000, joint=False),
    TrainingConfig(
        epochs=3,
        learning_rate=4e-3,
        warmup=100,
        smoothing=0.0,
        watch="exact",
        batching=Batching(tokens=700),
    ),
)


class Session(NamedTuple):
    training: Training
    skipped: SkippedLines  # lines that could not be used


def begin(
    folder: Path,
    sources: Sources,
    sizes: RNNConfig | TransformerConfig,
    tokenizer: TokenizerConfig,
    recipe: TrainingConfig,
    callback: Callback,
    ranks: SingleProcess | None = None,
) -> Session:
    """A new training whose checkpoints go into a new folder; of several processes the first makes
    it."""
    corpus, valid = sources.load()
    source, target = tokenizer.learn(corpus)
    examples, skipped = encode(corpus, source, target, tokenizer.max_length)
    torch.manual_seed(recipe.seed)
    kind = "recurrent" if isinstance(sizes, RNNConfig) else "transformer"
    model = model_of({"kind": kind, **asdict(sizes)}, len(source), len(target))
    interpreter = Interpreter(model, source, target, sources.normalization)
    facts = {
        "sources": sources.to_json(),
        "max_length": tokenizer.max_length,
        "recipe": asdict(recipe),
    }
    if ranks is None or ranks.is_first:
        checkpoint = Checkpoint.create(folder, interpreter, facts)
    else:
        checkpoint = Checkpoint(folder)
        torch.manual_seed(recipe.seed + ranks.number)  # dropout differs between processes
    training = Training(interpreter, examples, valid, recipe, checkpoint, callback, ranks)
    return Session(training, skipped)


def resume(folder: Path, callback: Callback, ranks: SingleProcess | None = None) -> Session:
    """The training in a folder, from its last checkpoint on."""
    checkpoint = Checkpoint.open(folder)
    config = checkpoint.config
    interpreter = checkpoint.interpreter("last")
    try:
        corpus, valid = Sources(**config["sources"]).load()
        length = config["max_length"]
        examples, skipped = encode(corpus, interpreter.source, interpreter.target, length)
        recipe = TrainingConfig.from_json(config["recipe"])
        training = Training(interpreter, examples, valid, recipe, checkpoint, callback, ranks)
        training.resume()
    except (KeyError, TypeError) as error:
        reason = str(error)[:200]
        raise ValueError(f"{folder} is incomplete: {reason} is missing or wrong") from error
    return Session(training, skipped)
