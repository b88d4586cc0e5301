"""Training: batches in an order that depends only on the seed; it can be stopped and resumed."""

from __future__ import annotations

import hashlib
import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, NamedTuple, Protocol

import torch
from torch import Tensor

from qkv.translate.data.batches import Batching, Example, by_length, collate, epoch
from qkv.translate.data.text import Pair
from qkv.translate.data.vocabulary import END
from qkv.translate.decoding.interpreter import Interpreter
from qkv.translate.decoding.search import Search
from qkv.translate.training.checkpoint import Checkpoint, restore
from qkv.translate.training.metrics import score
from qkv.translate.training.ranks import Loss, SingleProcess


@dataclass(frozen=True)
class TrainingConfig:
    """How to train.

    The learning rate rises linearly over `warmup` steps and falls linearly to a twentieth at the
    end of the last epoch. Training ends after `epochs`, after `minutes`, or when `watch` has not
    improved on the validation pairs for `patience` epochs.
    """

    epochs: int = 30
    minutes: float | None = None
    learning_rate: float = 1e-3
    warmup: int = 200
    smoothing: float = 0.1
    clip: float = 1.0
    weight_decay: float = 0.0
    batching: Batching = field(default_factory=Batching)
    watch: Literal["bleu", "loss", "exact"] = "bleu"
    tokenize: str = "13a"
    patience: int = 10
    seed: int = 1
    save_minutes: float = 5.0

    def __post_init__(self) -> None:
        if self.watch not in ("bleu", "loss", "exact"):
            raise ValueError(f"watch must be bleu, loss or exact; got {self.watch!r}")
        for name in ("epochs", "patience"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1; got {getattr(self, name)}")

    def rate(self, step: int, done: float) -> float:
        """The learning rate of a step, counted from 1, when `done` of all epochs is past."""
        return self.learning_rate * min(1.0, step / max(1, self.warmup)) * (1.0 - 0.95 * done)

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> TrainingConfig:
        return cls(**{**state, "batching": Batching(**state["batching"])})


@dataclass
class TrainingState:
    """The state of a training, in addition to its tensors."""

    epoch: int = 0
    batch: int = 0  # within the epoch
    step: int = 0
    loss: float = 0.0  # summed over this epoch
    tokens: int = 0  # target tokens of this epoch
    best: float | None = None
    waited: int = 0  # epochs since the best
    seconds: float = 0.0  # on the clock on the wall
    cpu_seconds: float = 0.0  # of this process, on all cores
    data: str = ""  # a fingerprint of the examples


class Epoch(NamedTuple):
    """The results of an epoch."""

    number: int
    loss: float  # per target token, smoothed as trained
    valid_loss: float  # per target token
    bleu: float
    exact: float
    is_best: bool
    sample: tuple[str, str, str]  # source, reference, translation


class Callback(Protocol):
    """Is called after each step and each epoch."""

    def step(self, progress: TrainingState, batches: int, tokens: int) -> None: ...

    def epoch(self, progress: TrainingState, result: Epoch) -> None: ...


class Interrupted(Exception):  # noqa: N818 - nothing went wrong
    """Training was stopped, and has saved the state from which it can be resumed."""


class Training:
    """A model in training.

    Args:
        interpreter: the model and its vocabularies.
        examples: the training examples.
        valid: the validation pairs.
        recipe: how to train.
        checkpoint: where it is saved; the first of several processes writes it.
        callback: called after each step and each epoch.
        ranks: the processes that share each batch. At the same batches, and without dropout, the
            losses are those of one process up to rounding.
    """

    def __init__(
        self,
        interpreter: Interpreter,
        examples: Sequence[Example],
        valid: Sequence[Pair],
        recipe: TrainingConfig,
        checkpoint: Checkpoint,
        callback: Callback,
        ranks: SingleProcess | None = None,
    ) -> None:
        self.ranks = ranks or SingleProcess()
        self.interpreter, self.model = interpreter, interpreter.model
        self.examples, self.valid, self.recipe = examples, valid, recipe
        self.checkpoint, self.callback = checkpoint, callback
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), fused=True, weight_decay=recipe.weight_decay
        )
        self._loss = self.ranks.wrap(Loss(self.model, recipe.smoothing))
        self.progress = TrainingState(data=_fingerprint(examples))
        self._stop = False
        self._valid = [
            Example(
                [*interpreter.source.split(pair.source).numbers, END],
                interpreter.target.split(pair.target).numbers,
            )
            for pair in valid
        ]

    def resume(self) -> None:
        """Restore the state of the checkpoint's last save."""
        last = self.checkpoint.config["last"]
        progress = TrainingState(**last["progress"])
        if progress.data != self.progress.data:
            raise ValueError("the training pairs must be those that the training began with")
        self.progress = progress
        name = last["weights"]
        restore(self.model, self.checkpoint.tensors(name), self.checkpoint.folder / name)
        state = self.checkpoint.tensors(last["training"])
        torch.set_rng_state(state.pop("rng"))
        if not self.ranks.is_first:
            torch.manual_seed(self.recipe.seed + self.ranks.number + progress.step)
        for name, parameter in self.model.named_parameters():
            self.optimizer.state[parameter] = {
                kind: state[f"{name}/{kind}"] for kind in ("step", "exp_avg", "exp_avg_sq")
            }

    def run(self) -> TrainingState:
        """Train to the end of the recipe; :class:`Interrupted` where a signal came before."""
        with self._stoppable():
            while self.progress.epoch < self.recipe.epochs and not self._finished():
                self._epoch()
        return self.progress

    def _finished(self) -> bool:
        minutes = self.recipe.minutes
        out_of_time = minutes is not None and self._agreed(self.progress.seconds >= 60 * minutes)
        return out_of_time or self.progress.waited >= self.recipe.patience

    def _agreed(self, vote: bool) -> bool:
        """Whether any process votes for it, so that all do the same at the same step."""
        return self.ranks.total(float(vote))[0] > 0

    def _epoch(self) -> None:
        progress, recipe = self.progress, self.recipe
        groups = epoch(self.examples, recipe.batching, recipe.seed + progress.epoch)
        self.model.train()
        clock, saved = _Clock(progress), time.monotonic()
        while progress.batch < len(groups):
            tokens = self._step(groups[progress.batch], len(groups))
            clock.tick()
            self.callback.step(progress, len(groups), tokens)
            if self._agreed(self._stop):
                self._save(is_best=False)
                raise Interrupted
            if time.monotonic() - saved > 60 * recipe.save_minutes:
                self._save(is_best=False)
                saved = time.monotonic()
            if self._finished():
                break
        result = self._validated()
        progress.epoch, progress.batch, progress.loss, progress.tokens = (
            progress.epoch + 1,
            0,
            0.0,
            0,
        )
        clock.tick()
        self._save(result.is_best)
        self.callback.epoch(progress, result)

    def _step(self, group: Sequence[int], batches: int) -> int:
        progress, recipe = self.progress, self.recipe
        shard = self.ranks.share(group)
        # A process without examples takes part too, with a weight of 0.
        examples = [self.examples[i] for i in shard or group[:1]]
        batch = collate(examples).to(self.model.output.weight.device)
        tokens = sum(len(self.examples[i].target) + 1 for i in group)
        self.optimizer.zero_grad()
        loss = self._loss(batch) * float(len(shard) > 0)
        # Gradients are averaged over processes, and each has a part of the sum.
        (loss * (self.ranks.count / tokens)).backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), recipe.clip)
        done = (progress.epoch + progress.batch / batches) / recipe.epochs
        for options in self.optimizer.param_groups:
            options["lr"] = recipe.rate(progress.step + 1, done)
        self.optimizer.step()
        progress.batch += 1
        progress.step += 1
        progress.loss += self.ranks.total(loss.item())[0]
        progress.tokens += tokens
        if not math.isfinite(progress.loss):
            raise ValueError(
                f"the loss is no longer a number at step {progress.step}; a smaller "
                f"learning rate than {recipe.learning_rate} may help"
            )
        return tokens

    def _validated(self) -> Epoch:
        """Validate the model with greedy search; the progress keeps the best result."""
        progress, watch = self.progress, self.recipe.watch
        translations = self.interpreter.best([pair.source for pair in self.valid], Search(beam=1))
        scores = score(translations, [pair.target for pair in self.valid], self.recipe.tokenize)
        loss = self._valid_loss()
        now = {"bleu": scores.bleu, "exact": scores.exact, "loss": -loss}[watch]
        is_best = progress.best is None or now > progress.best
        progress.best = now if is_best else progress.best
        progress.waited = 0 if is_best else progress.waited + 1
        pick = progress.epoch % len(self.valid)
        return Epoch(
            progress.epoch + 1,
            progress.loss / max(1, progress.tokens),
            loss,
            scores.bleu,
            scores.exact,
            is_best,
            (self.valid[pick].source, self.valid[pick].target, translations[pick]),
        )

    @torch.no_grad()
    def _valid_loss(self) -> float:
        self.model.eval()
        device = self.model.output.weight.device
        lengths = [len(example.target) + 1 for example in self._valid]
        total = sum(
            float(self.model.loss(collate([self._valid[i] for i in group]).to(device)))
            for group in by_length(lengths, self.recipe.batching)
        )
        return total / sum(lengths)

    def _save(self, is_best: bool) -> None:
        if not self.ranks.is_first:
            return
        state: dict[str, Tensor] = {"rng": torch.get_rng_state()}
        for name, parameter in self.model.named_parameters():
            for kind, tensor in self.optimizer.state[parameter].items():
                state[f"{name}/{kind}"] = tensor
        self.checkpoint.save(self.model, state, asdict(self.progress), is_best)

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """Let Ctrl-C and SIGTERM end training after the current step."""

        def ask(number: int, frame: object) -> None:
            self._stop = True

        if threading.current_thread() is not threading.main_thread():
            yield  # only the main thread may catch signals
            return
        before = {each: signal.signal(each, ask) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


class _Clock:
    """Adds the time since the last tick to the progress."""

    def __init__(self, progress: TrainingState) -> None:
        self.progress = progress
        self.wall, self.cpu = time.monotonic(), time.process_time()

    def tick(self) -> None:
        wall, cpu = time.monotonic(), time.process_time()
        self.progress.seconds += wall - self.wall
        self.progress.cpu_seconds += cpu - self.cpu
        self.wall, self.cpu = wall, cpu


def _fingerprint(examples: Sequence[Example]) -> str:
    return hashlib.sha256(repr([tuple(example) for example in examples]).encode()).hexdigest()
