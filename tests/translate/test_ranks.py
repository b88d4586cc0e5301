"""Training on several processes, as torchrun starts them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from toy import RECIPE, SIZES, TOKENIZER, write_pairs

from qkv.translate import begin, load, resume
from qkv.translate.data.batches import Batching
from qkv.translate.training.callbacks import NullCallback
from qkv.translate.training.checkpoint import Checkpoint
from qkv.translate.training.train import Epoch, TrainingState

_BATCH = 200
_RECIPE = replace(RECIPE, batching=Batching(_BATCH))
_TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
             "--master-port", "0", "--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0",
             "-m", "qkv", "translate", "train"]  # fmt: skip


def _torchrun(folder: Path, *words: str) -> subprocess.Popen[str]:
    sources = write_pairs(folder)
    return _started(
        "--pairs", str(sources.pairs), "--valid-pairs", str(sources.valid_pairs),
        "--out", str(folder / "model"), "--level", TOKENIZER.level, "--vocabulary",
        str(TOKENIZER.size), "--embedding", str(SIZES.embedding), "--hidden", str(SIZES.hidden),
        "--dropout", "0", "--batch-tokens", str(_BATCH), "--smoothing", "0", "--watch", "exact",
        "--learning-rate", str(RECIPE.learning_rate), "--warmup", str(RECIPE.warmup), "--seed",
        "3", *words,
    )  # fmt: skip


def _started(*words: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        [*_TORCHRUN, *words], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=environment, start_new_session=True,
    )  # fmt: skip


def _last(folder: Path) -> Any:
    config = folder / "model" / "config.json"
    return json.loads(config.read_text()).get("last") if config.exists() else None


def _weights(folder: Path) -> dict[str, torch.Tensor]:
    return Checkpoint.open(folder).interpreter("last").model.state_dict()


def _begun(folder: Path) -> tuple[subprocess.Popen[str], list[psutil.Process]]:
    """A long training that has written its first checkpoint, and its two ranks."""
    run = _torchrun(folder, "--epochs", "500", "--patience", "500")
    deadline = time.monotonic() + 90
    while _last(folder) is None and time.monotonic() < deadline:
        time.sleep(0.05)
    ranks = [
        process
        for process in psutil.Process(run.pid).children(recursive=True)
        if "translate" in process.cmdline()
    ]
    assert len(ranks) == 2
    return run, ranks


class Diary(NullCallback):
    def __init__(self) -> None:
        self.losses: list[tuple[float, float]] = []

    def epoch(self, progress: TrainingState, result: Epoch) -> None:
        self.losses.append((result.loss, result.valid_loss))


def test_two_processes_learn_what_one_does(tmp_path: Path) -> None:
    two, one = tmp_path / "two", tmp_path / "one"
    two.mkdir()
    one.mkdir()
    run = _torchrun(two, "--epochs", "2")
    out, _ = run.communicate(timeout=120)
    assert run.returncode == 0, out
    # One of the processes speaks, once for each epoch.
    told = re.findall(r"epoch \d: loss (\S+), validation loss (\S+),", out)
    assert len(told) == 2
    diary = Diary()
    sizes = load(two / "model").model.sizes
    begun = begin(one / "model", write_pairs(one), sizes, TOKENIZER, _RECIPE, diary)
    begun.training.run()
    assert _last(two)["progress"]["step"] == begun.training.progress.step
    # Three digits are printed; the weights tell whether the curves agree to rounding.
    for ours, theirs in zip(told, diary.losses, strict=True):
        assert tuple(map(float, ours)) == pytest.approx(theirs, abs=6e-4)
    _assert_alike(two, one)


def _assert_alike(shared: Path, alone: Path) -> None:
    # Adam divides gradients by their own size, so where they are small rounding counts for more.
    ours, theirs = (_weights(each / "model") for each in (shared, alone))
    assert ours.keys() == theirs.keys()
    for name, weight in theirs.items():
        torch.testing.assert_close(ours[name], weight, atol=2e-5, rtol=0, msg=name)


class StopAfterAnEpoch(NullCallback):
    def epoch(self, progress: TrainingState, result: Epoch) -> None:
        raise KeyboardInterrupt


def test_two_processes_go_on_where_one_was(tmp_path: Path) -> None:
    shared, alone = tmp_path / "shared", tmp_path / "alone"
    for folder in (shared, alone):
        folder.mkdir()
    how = (SIZES, TOKENIZER, _RECIPE)
    begin(alone / "model", write_pairs(alone), *how, NullCallback()).training.run()
    stopped = begin(shared / "model", write_pairs(shared), *how, StopAfterAnEpoch())
    with pytest.raises(KeyboardInterrupt):
        stopped.training.run()
    run = _started("--out", str(shared / "model"), "--resume")
    out, _ = run.communicate(timeout=120)
    assert run.returncode == 0, out
    assert re.findall(r"epoch (\d): loss", out) == ["2"]
    assert _last(shared)["progress"]["step"] == _last(alone)["progress"]["step"]
    _assert_alike(shared, alone)


def test_a_killed_rank_ends_all_with_the_last_good_checkpoint(tmp_path: Path) -> None:
    run, ranks = _begun(tmp_path)
    ranks[-1].send_signal(signal.SIGKILL)
    run.communicate(timeout=60)
    assert run.returncode != 0
    assert not any(process.is_running() for process in ranks)
    again = resume(tmp_path / "model", NullCallback())  # one process goes on where two were
    before = again.training.progress.step
    assert before > 0
    groups = [[0, 1, 2], [3, 4]]
    again.training._step(groups[0], 2)
    assert again.training.progress.step == before + 1


def test_ctrl_c_ends_all_ranks_after_a_checkpoint(tmp_path: Path) -> None:
    run, ranks = _begun(tmp_path)
    before = _last(tmp_path)["progress"]["step"]
    # A terminal sends it to the whole foreground group: torchrun and both ranks.
    os.killpg(run.pid, signal.SIGINT)
    out, _ = run.communicate(timeout=60)
    assert run.returncode != 0
    assert not any(process.is_running() for process in ranks)
    assert "--resume" in out, out
    again = resume(tmp_path / "model", NullCallback())
    assert again.training.progress.step >= before > 0
