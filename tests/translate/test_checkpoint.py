"""Checkpoints: whole at every moment, and refused with a reason where they are not."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from toy import begun

from qkv.translate import RNNConfig, Search, TransformerConfig, load
from qkv.translate.training.checkpoint import Checkpoint


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    session = begun(tmp_path)
    session.training._save(is_best=True)
    return tmp_path / "model"


@pytest.mark.parametrize(
    "sizes",
    [
        RNNConfig(embedding=6, hidden=8, tied=True, cell="lstm", readout="tanh"),
        RNNConfig(embedding=6, hidden=8, similarity="gaussian"),
        TransformerConfig(d_model=8, heads=2, d_ff=12, layers=1, tied=True),
    ],
)
def test_what_is_loaded_says_what_was_saved(
    tmp_path: Path, sizes: RNNConfig | TransformerConfig
) -> None:
    session = begun(tmp_path, sizes=sizes)
    training = session.training
    training._save(is_best=True)
    again = load(tmp_path / "model")
    texts, how = ["abc", "edcba", "b"], Search(beam=3, max_length=7)
    assert again.best(texts, how) == training.interpreter.best(texts, how)
    assert not again.model.training
    saved = dict(training.model.named_parameters())
    for name, parameter in again.model.named_parameters():
        torch.testing.assert_close(parameter, saved[name], rtol=0, atol=0)


def test_no_file_is_a_pickle(folder: Path) -> None:
    assert {path.suffix for path in folder.iterdir()} == {".json", ".safetensors"}
    for path in folder.iterdir():
        head = path.read_bytes()[:200]
        assert b"{" in head[:9]
        assert not head.startswith((b"\x80", b"PK"))


def test_the_best_and_the_last_are_kept_and_no_others(folder: Path) -> None:
    checkpoint = Checkpoint.open(folder)
    model = checkpoint.interpreter().model
    for step in (5, 7, 9):
        checkpoint.save(model, {"rng": torch.get_rng_state()}, {"step": step}, is_best=step == 5)
    names = sorted(path.name for path in folder.glob("*.safetensors"))
    assert names == ["training-9.safetensors", "weights-5.safetensors", "weights-9.safetensors"]


def broken(folder: Path, name: str, content: bytes) -> str:
    (folder / name).write_bytes(content)
    with pytest.raises(ValueError, match=r".") as caught:
        load(folder)
    return str(caught.value)


def test_what_is_wrong_with_a_folder_is_said(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"holds no checkpoint: there is no config.json in it$"):
        load(tmp_path / "elsewhere")
    config = json.loads((folder / "config.json").read_text())
    weights = config["best"]["weights"]
    whole = (folder / weights).read_bytes()
    assert "is truncated or damaged" in broken(folder, weights, whole[: len(whole) // 2])
    assert "is truncated or damaged" in broken(folder, weights, b"")
    (folder / weights).unlink()
    with pytest.raises(ValueError, match=r"is incomplete: weights-0.safetensors is missing$"):
        load(folder)
    (folder / weights).write_bytes(whole)
    vocabulary = (folder / "vocabulary.json").read_bytes()
    assert "vocabulary.json is truncated" in broken(folder, "vocabulary.json", vocabulary[:-9])
    assert "is missing or wrong" in broken(folder, "vocabulary.json", b"{}")
    (folder / "vocabulary.json").write_bytes(vocabulary)

    def changed(**values: object) -> bytes:
        return json.dumps({**config, **values}).encode()

    newer = broken(folder, "config.json", changed(version=2))
    assert newer.endswith("has format version 2; this qkv reads up to 1: a newer qkv is needed")
    foreign = broken(folder, "config.json", b'{"architectures": ["BertModel"]}')
    assert foreign.endswith("config.json is not a checkpoint of qkv translate")
    assert "is not a checkpoint" in broken(folder, "config.json", b"[]")
    assert "is truncated or damaged" in broken(folder, "config.json", b'{"format": "qkv.tr')
    larger = {**config["model"], "hidden": 64}
    assert "must have shape" in broken(folder, "config.json", changed(model=larger))
    other = {**config["model"], "similarity": "bilinear"}
    assert "does not fit the model" in broken(folder, "config.json", changed(model=other))
    outside = {"weights": "../../etc/passwd"}
    assert "passwd is missing" in broken(folder, "config.json", changed(best=outside))


def test_a_folder_in_use_is_not_written_over(tmp_path: Path) -> None:
    begun(tmp_path).training._save(is_best=True)
    with pytest.raises(ValueError, match=r"already holds a checkpoint; continue with --resume"):
        begun(tmp_path)


_SAVES_FOR_EVER = """
import sys
from pathlib import Path
from qkv.translate.training.checkpoint import Checkpoint
import torch
checkpoint = Checkpoint.open(Path(sys.argv[1]))
model = checkpoint.interpreter().model
step = 0
while True:
    step += 1
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(step)
    training = {"rng": torch.get_rng_state(), "big": torch.zeros(500_000)}
    checkpoint.save(model, training, {"step": step}, is_best=True)
    print(step, flush=True)
"""


@pytest.mark.parametrize("milliseconds", [3.7, 13.1, 29.3])
def test_a_kill_during_a_save_leaves_the_last_good_checkpoint(
    folder: Path, milliseconds: float
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", _SAVES_FOR_EVER, str(folder)], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    said = int(process.stdout.readline())
    # No moment is special: it falls within a save or between two.
    time.sleep(milliseconds / 1000)
    os.kill(process.pid, signal.SIGKILL)
    rest = process.stdout.read().split()
    process.wait()
    process.stdout.close()
    last = int(rest[-1]) if rest else said
    checkpoint = Checkpoint.open(folder)
    step = checkpoint.config["last"]["progress"]["step"]
    assert step in (last, last + 1)
    for parameter in checkpoint.interpreter().model.parameters():
        assert (parameter == step).all()
    assert checkpoint.tensors(checkpoint.config["last"]["training"])["big"].shape == (500_000,)


@pytest.mark.parametrize("moment", range(6))
def test_a_save_that_stops_at_any_write_leaves_the_last_good_one(
    folder: Path, monkeypatch: pytest.MonkeyPatch, moment: int
) -> None:
    """Each write and each replacement of a save fails in turn, as on a full disk."""
    checkpoint = Checkpoint.open(folder)
    model = checkpoint.interpreter().model
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    calls = 0
    fsync, replace = os.fsync, Path.replace

    def failing(real: object) -> object:
        def call(*args: object) -> object:
            nonlocal calls
            calls += 1
            if calls > moment:
                raise OSError(28, "No space left on device")
            return real(*args)  # type: ignore[operator]

        return call

    monkeypatch.setattr(os, "fsync", failing(fsync))
    monkeypatch.setattr(Path, "replace", failing(replace))
    with pytest.raises(OSError, match="No space left"):
        checkpoint.save(model, {"rng": torch.get_rng_state()}, {"step": 1}, is_best=True)
    monkeypatch.undo()
    for name, parameter in load(folder).model.named_parameters():
        torch.testing.assert_close(parameter, before[name], rtol=0, atol=0)
    assert not list(folder.glob(".*"))
