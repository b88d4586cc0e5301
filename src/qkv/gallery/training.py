"""Training a small translator for an example, with its curve."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from qkv.translate import Interpreter, RNNConfig, TokenizerConfig, TrainingConfig, begin
from qkv.translate.data.sources import Sources
from qkv.translate.training.train import Epoch, TrainingState


@dataclass
class Curve:
    """The loss of each step; a callback of the training."""

    steps: list[int] = field(default_factory=list)
    losses: list[float] = field(default_factory=list)
    _before: tuple[float, int] = (0.0, 0)

    def step(self, progress: TrainingState, batches: int, tokens: int) -> None:
        loss, count = self._before if progress.tokens > self._before[1] else (0.0, 0)
        self.steps.append(progress.step)
        self.losses.append((progress.loss - loss) / max(1, progress.tokens - count))
        self._before = progress.loss, progress.tokens

    def epoch(self, progress: TrainingState, result: Epoch) -> None:
        pass


def trained(
    pairs: Iterable[tuple[str, str]],
    sizes: RNNConfig,
    tokenizer: TokenizerConfig,
    recipe: TrainingConfig,
) -> tuple[Interpreter, Curve]:
    """A translator trained on these pairs, which is not saved."""
    curve = Curve()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pairs.tsv"
        file.write_text("".join(f"{a}\t{b}\n" for a, b in pairs), encoding="utf-8")
        sources = Sources(pairs=str(file))
        session = begin(Path(folder) / "model", sources, sizes, tokenizer, recipe, curve)
        with _one_thread():
            session.training.run()
    return session.training.interpreter, curve


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """One thread: models this small would wait for threads longer than they compute."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
