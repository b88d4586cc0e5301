"""Training: it learns, it stops, and it goes on as if it had not."""

from __future__ import annotations

import dataclasses
import os
import signal
from pathlib import Path

import pytest
import torch
from toy import RECIPE, SIZES, TOKENIZER, begun, write_pairs

from qkv.translate import Interpreter, RNNConfig, Search, TrainingConfig, begin, load, resume
from qkv.translate.training.callbacks import NullCallback
from qkv.translate.training.train import Epoch, Interrupted, TrainingState


class Stopper(NullCallback):
    """Presses Ctrl-C at a step."""

    def __init__(self, at: int) -> None:
        self.at = at

    def step(self, progress: TrainingState, batches: int, tokens: int) -> None:
        if progress.step == self.at:
            os.kill(os.getpid(), signal.SIGINT)


class Diary(NullCallback):
    def __init__(self) -> None:
        self.epochs: list[Epoch] = []

    def epoch(self, progress: TrainingState, result: Epoch) -> None:
        self.epochs.append(result)


def weights(speaker: Interpreter) -> list[torch.Tensor]:
    return [parameter.detach() for parameter in speaker.model.parameters()]


@pytest.mark.parametrize("stop", [4, 13, 17])  # within an epoch, at its end, within the second
def test_stopped_and_resumed_gives_the_same_weights_bit_for_bit(tmp_path: Path, stop: int) -> None:
    sizes = dataclasses.replace(SIZES, dropout=0.3)
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole = begun(tmp_path / "whole", sizes=sizes)
    whole.training.run()
    parts = begun(tmp_path / "parts", sizes=sizes, callback=Stopper(stop))
    with pytest.raises(Interrupted):
        parts.training.run()
    assert parts.training.progress.step == stop
    torch.manual_seed(99)  # what happens in between is of no matter
    again = resume(tmp_path / "parts" / "model", NullCallback())
    again.training.run()
    assert again.training.progress.step == whole.training.progress.step == 26
    ours, theirs = weights(again.training.interpreter), weights(whole.training.interpreter)
    torch.testing.assert_close(ours, theirs, rtol=0, atol=0)
    best = [load(tmp_path / name / "model") for name in ("whole", "parts")]
    torch.testing.assert_close(weights(best[0]), weights(best[1]), rtol=0, atol=0)


def test_seeds_make_runs_repeatable(tmp_path: Path) -> None:
    found = []
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        (tmp_path / name).mkdir()
        recipe = dataclasses.replace(RECIPE, epochs=1, seed=seed)
        session = begun(tmp_path / name, recipe=recipe)
        session.training.run()
        found.append(weights(session.training.interpreter)[0])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_the_reverse_of_a_string_is_learned_without_a_mistake(tmp_path: Path) -> None:
    recipe = dataclasses.replace(RECIPE, epochs=8)
    diary = Diary()
    sources = write_pairs(tmp_path, count=1500)
    session = begin(
        tmp_path / "model", sources, RNNConfig(24, 48, dropout=0.0), TOKENIZER, recipe, diary
    )
    session.training.run()
    assert max(epoch.exact for epoch in diary.epochs) == 100.0
    speaker = load(tmp_path / "model")
    assert speaker.best(["abcde", "aab", "d"], Search(beam=3)) == ["edcba", "baa", "d"]
    ((best,),) = speaker.translate(["abcde"])
    looked = best.alignment.weights[:, :5].argmax(1).tolist()
    assert looked == [4, 3, 2, 1, 0]  # it looks where it should: from the end to the beginning


def test_patience_and_time_end_training(tmp_path: Path) -> None:
    for name, options in (
        ("patience", {"learning_rate": 0.0, "patience": 2, "epochs": 9}),
        ("time", {"minutes": 0.0, "epochs": 9}),
    ):
        (tmp_path / name).mkdir()
        recipe = dataclasses.replace(RECIPE, **options)
        progress = begun(tmp_path / name, recipe=recipe).training.run()
        assert progress.epoch == (3 if name == "patience" else 0)


def test_the_rate_rises_in_a_line_and_falls_in_a_line() -> None:
    recipe = TrainingConfig(learning_rate=2.0, warmup=4)
    assert recipe.rate(1, 0.0) == 0.5
    assert recipe.rate(4, 0.0) == 2.0
    assert recipe.rate(9, 0.5) == pytest.approx(2.0 * 0.525)
    assert recipe.rate(9, 1.0) == pytest.approx(0.1)


def test_training_on_other_pairs_is_refused(tmp_path: Path) -> None:
    session = begun(tmp_path, callback=Stopper(2))
    with pytest.raises(Interrupted):
        session.training.run()
    (tmp_path / "train.tsv").write_text("ab\tba\ncd\tdc\n")
    with pytest.raises(ValueError, match=r"^the training pairs must be those that the training be"):
        resume(tmp_path / "model", NullCallback())


def test_mistakes_are_named() -> None:
    with pytest.raises(ValueError, match=r"^watch must be bleu, loss or exact; got 'chrf'$"):
        TrainingConfig(watch="chrf")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^epochs must be at least 1; got 0$"):
        TrainingConfig(epochs=0)


def test_a_loss_that_is_no_number_ends_training(tmp_path: Path) -> None:
    session = begun(tmp_path)
    with torch.no_grad():
        session.training.model.output.bias.fill_(float("nan"))
    with pytest.raises(ValueError, match=r"^the loss is no longer a number at step 1; a smaller"):
        session.training.run()
