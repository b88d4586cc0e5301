"""The options of `qkv translate train`, grouped as the configurations that they become."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from qkv.translate.data.sources import Sources
    from qkv.translate.models.recurrent import RNNConfig
    from qkv.translate.models.transformer import TransformerConfig
    from qkv.translate.training.setup import TokenizerConfig
    from qkv.translate.training.train import TrainingConfig


@dataclass(frozen=True)
class DataOptions:
    """The files to train on; those that are given go to :class:`qkv.translate.data.Sources`."""

    source: Annotated[Path | None, typer.Option(help="Sentences, one a line; may be .gz.")] = None
    target: Annotated[Path | None, typer.Option(help="Their translations, line by line.")] = None
    valid_source: Annotated[Path | None, typer.Option(help="Sentences to validate on.")] = None
    valid_target: Annotated[Path | None, typer.Option(help="Their translations.")] = None
    pairs: Annotated[
        Path | None, typer.Option(help="Instead: lines of sentence, tab, translation.")
    ] = None
    valid_pairs: Annotated[Path | None, typer.Option(help="Such lines to validate on.")] = None
    demo: Annotated[str | None, typer.Option(help="Instead: synthetic data; dates.")] = None

    def sources(self, normalization: str) -> Sources:
        from qkv.translate.data.sources import Sources

        files: dict[str, Any] = {
            name: str(file) for name, file in vars(self).items() if file is not None
        }
        return Sources(**files, normalization=normalization)  # type: ignore[arg-type]


@dataclass(frozen=True)
class ModelOptions:
    """What is trained: options of `RNNConfig` and `TransformerConfig`, which check the names."""

    model: Annotated[str, typer.Option(help="recurrent or transformer.")] = "recurrent"
    similarity: Annotated[str | None, typer.Option(help="The similarity, by name.")] = None
    cell: Annotated[str, typer.Option(help="gru or lstm.")] = "gru"
    readout: Annotated[str, typer.Option(help="maxout or tanh.")] = "maxout"
    embedding: Annotated[int, typer.Option(min=1, help="Size of a piece's vector.")] = 256
    hidden: Annotated[int, typer.Option(min=1, help="Size of the state.")] = 256
    tied: Annotated[bool, typer.Option(help="Output layer and embedding are one.")] = True
    dropout: Annotated[
        float, typer.Option(min=0.0, max=0.95, help="Share of numbers dropped in training.")
    ] = 0.4

    def config(self) -> RNNConfig | TransformerConfig:
        from qkv.translate.models.recurrent import RNNConfig
        from qkv.translate.models.transformer import TransformerConfig

        shared: dict[str, Any] = {"tied": self.tied, "dropout": self.dropout}
        if self.similarity:
            shared["similarity"] = self.similarity
        if self.model == "recurrent":
            names: dict[str, Any] = {"cell": self.cell, "readout": self.readout}
            return RNNConfig(self.embedding, self.hidden, **names, **shared)
        if self.model == "transformer":
            return TransformerConfig(self.hidden, d_ff=2 * self.hidden, **shared)
        raise ValueError(f"model must be recurrent or transformer; got {self.model!r}")


@dataclass(frozen=True)
class TokenizerOptions:
    """How sentences become pieces: options of `TokenizerConfig`, and the normalization of text."""

    level: Annotated[str, typer.Option(help="subwords, words or characters.")] = "subwords"
    vocabulary: Annotated[int, typer.Option(min=5, help="At most so many pieces.")] = 8000
    joint: Annotated[bool, typer.Option(help="One vocabulary for both languages.")] = True
    normalization: Annotated[str, typer.Option(help="nfc, nfkc or none.")] = "nfc"
    max_length: Annotated[int, typer.Option(min=1, help="Longer pairs are left out.")] = 100

    def config(self) -> TokenizerConfig:
        from qkv.translate.training.setup import TokenizerConfig

        level: Any = self.level  # checked when the vocabulary is learned
        return TokenizerConfig(level, self.vocabulary, self.joint, self.max_length)


@dataclass(frozen=True)
class TrainingOptions:
    """How it is trained: options of `TrainingConfig`."""

    batch_tokens: Annotated[int, typer.Option(min=1, help="Target pieces in a batch.")] = 1100
    epochs: Annotated[int, typer.Option(min=1, help="Passes over all pairs, at most.")] = 18
    minutes: Annotated[float | None, typer.Option(min=0.0, help="Stop after so long.")] = None
    learning_rate: Annotated[float, typer.Option(min=0.0, help="Its highest value.")] = 1e-3
    warmup: Annotated[int, typer.Option(min=0, help="Steps over which the rate rises.")] = 200
    smoothing: Annotated[
        float, typer.Option(min=0.0, max=0.99, help="Label smoothing, 0 for none.")
    ] = 0.1
    clip: Annotated[float, typer.Option(min=0.0, help="Largest norm of a gradient.")] = 1.0
    patience: Annotated[int, typer.Option(min=1, help="Epochs without progress.")] = 10
    watch: Annotated[str, typer.Option(help="What progress is: bleu, loss or exact.")] = "bleu"
    tokenize: Annotated[str, typer.Option(help="sacrebleu's tokenizer.")] = "13a"
    seed: Annotated[int, typer.Option(help="Same seed, same model.")] = 1

    def config(self) -> TrainingConfig:
        from qkv.translate.data.batches import Batching
        from qkv.translate.training.train import TrainingConfig

        options = dict(vars(self))
        batching = Batching(options.pop("batch_tokens"))
        return TrainingConfig(**options, batching=batching)
