"""Training progress on the console and in TensorBoard."""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from types import TracebackType
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, TextColumn

from qkv.optional_dependencies import require
from qkv.translate.training import train
from qkv.translate.training.train import Epoch, TrainingConfig

#: Steps over which the speed is measured.
_WINDOW = 50


class Display:
    """A progress bar for the steps, and a line for each epoch."""

    def __init__(self, console: Console, recipe: TrainingConfig) -> None:
        self.console, self.recipe = console, recipe
        self.bar = Progress(
            TextColumn("epoch {task.fields[epoch]}"),
            BarColumn(),
            TextColumn(
                "loss {task.fields[loss]:.3f}  {task.fields[speed]:,.0f} tokens/s  "
                "{task.fields[left]} left"
            ),
            console=console,
            transient=True,
        )
        self.task = self.bar.add_task("", epoch="", loss=0.0, speed=0.0, left="?")
        self.recent: deque[tuple[float, int]] = deque(maxlen=_WINDOW)
        self.started: tuple[float, float] | None = None

    def __enter__(self) -> Display:
        self.bar.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.bar.stop()

    def step(self, progress: train.TrainingState, batches: int, tokens: int) -> None:
        now = time.monotonic()
        self.recent.append((now, tokens))
        span = now - self.recent[0][0]
        speed = sum(count for _, count in list(self.recent)[1:]) / span if span else 0.0
        self.bar.update(
            self.task,
            total=batches,
            completed=progress.batch,
            epoch=f"{progress.epoch + 1}/{self.recipe.epochs}",
            loss=progress.loss / max(1, progress.tokens),
            speed=speed,
            left=_readable(self._left(progress, batches, now)),
        )

    def epoch(self, progress: train.TrainingState, result: Epoch) -> None:
        source, reference, translation = map(escape, result.sample)
        best = "  [green]best[/]" if result.is_best else ""
        self.console.print(
            f"epoch {result.number}: loss {result.loss:.3f}, validation loss "
            f"{result.valid_loss:.3f}, BLEU {result.bleu:.2f}, exact {result.exact:.1f} %, "
            f"{_readable(progress.seconds)}{best}",
            highlight=False,
        )
        mark = "=" if reference == translation else "≠"
        self.console.print(
            f"  [dim]{source} → {translation} {mark} {reference}[/]", highlight=False
        )

    def _left(self, progress: train.TrainingState, batches: int, now: float) -> float | None:
        done = (progress.epoch + progress.batch / batches) / self.recipe.epochs
        if self.started is None:
            self.started = (now, done)
        elapsed, share = now - self.started[0], done - self.started[1]
        left = elapsed / share * (1.0 - done) if share else None
        if self.recipe.minutes is None:
            return left
        budget = max(0.0, 60.0 * self.recipe.minutes - progress.seconds)
        return budget if left is None else min(budget, left)


class TensorBoard:
    """The same as curves; `folder` is what `tensorboard --logdir` is given."""

    def __init__(self, folder: Path) -> None:
        require("tensorboard", "tensorboard")
        self.writer: Any = require("torch.utils.tensorboard", "tensorboard").SummaryWriter(
            str(folder)
        )

    def step(self, progress: train.TrainingState, batches: int, tokens: int) -> None:
        loss = progress.loss / max(1, progress.tokens)
        self.writer.add_scalar("training/loss", loss, progress.step)

    def epoch(self, progress: train.TrainingState, result: Epoch) -> None:
        for name in ("valid_loss", "bleu", "exact"):
            self.writer.add_scalar(f"validation/{name}", getattr(result, name), progress.step)
        self.writer.add_text("sample", " → ".join(result.sample[::2]), progress.step)
        self.writer.flush()


class CallbackList:
    """Several callbacks as one."""

    def __init__(self, *callbacks: train.Callback) -> None:
        self.callbacks = callbacks

    def step(self, progress: train.TrainingState, batches: int, tokens: int) -> None:
        for callback in self.callbacks:
            callback.step(progress, batches, tokens)

    def epoch(self, progress: train.TrainingState, result: Epoch) -> None:
        for callback in self.callbacks:
            callback.epoch(progress, result)


class NullCallback:
    """A callback that does nothing."""

    def step(self, progress: train.TrainingState, batches: int, tokens: int) -> None:
        pass

    def epoch(self, progress: train.TrainingState, result: Epoch) -> None:
        pass


def _readable(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"
