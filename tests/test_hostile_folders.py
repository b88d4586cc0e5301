"""Folders of models that mean no good: checkpoints of ours, and those of Hugging Face."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from translate.toy import begun

from qkv import translate
from qkv.atomic_write import replacing
from qkv.translate.training.callbacks import NullCallback
from qkv.translate.training.checkpoint import Checkpoint
from qkv.words.pieces import load_folder

LIMIT = 3 * 2**30  # bytes that a reading may take beyond what the libraries have


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hostile")
    training = begun(folder, sizes=translate.TransformerConfig(d_model=8, heads=2, d_ff=8)).training
    training.checkpoint.save(training.interpreter.model, {}, {"step": 1}, True)
    return folder / "model"


@pytest.fixture
def checkpoint(trained: Path, tmp_path: Path) -> Path:
    shutil.copytree(trained, tmp_path / "model")
    return tmp_path / "model"


def _rewrite(file: Path, change: Callable[[Any], None]) -> None:
    content = json.loads(file.read_text())
    change(content)
    file.write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: c["model"].update(layers=10**9), "too few for 1,000,000,000 layers"),
        (lambda c: c["model"].update(d_model=10**9), "must have shape|does not fit|is incomplete"),
        (lambda c: c["model"].update(d_ff=10**12), "must have shape|is incomplete"),
        (lambda c: c.update(model=[1]), "is missing or wrong"),
        (lambda c: c["best"].update(weights="/etc/passwd"), "passwd is missing"),
        (lambda c: c["best"].update(weights="w" * 5000), "cannot be read: File name too long"),
    ],
)
def test_absurd_sizes_and_names_are_refused_at_once(
    checkpoint: Path, change: Any, message: str
) -> None:
    _rewrite(checkpoint / "config.json", change)
    with pytest.raises(ValueError, match=message):
        translate.load(checkpoint)


@pytest.mark.parametrize("name", ["config.json", "vocabulary.json", "weights-1.safetensors"])
@pytest.mark.parametrize("instead", ["device", "pipe", "loop"])
def test_what_is_no_regular_file_is_not_read(checkpoint: Path, name: str, instead: str) -> None:
    (checkpoint / name).unlink()
    if instead == "pipe":
        os.mkfifo(checkpoint / name)
    else:
        (checkpoint / name).symlink_to("/dev/zero" if instead == "device" else name)
    with pytest.raises(ValueError, match=r"no checkpoint|regular|incomplete|cannot be read"):
        translate.load(checkpoint)


def test_nothing_is_written_through_a_link(checkpoint: Path, tmp_path: Path) -> None:
    """Neither through one in the place of a file, nor in that of a half-written one."""
    secret = tmp_path / "secret"
    secret.write_text("mine")
    opened = Checkpoint.open(checkpoint)
    model = opened.interpreter().model
    for name in ("weights-2.safetensors", "training-2.safetensors", "config.json"):
        with contextlib.suppress(FileNotFoundError), replacing(checkpoint / name) as half:
            pass  # where the next save writes first; nothing is written
        half.symlink_to(secret)
        (checkpoint / name).unlink(missing_ok=True)
        (checkpoint / name).symlink_to(secret)
    opened.save(model, {"rng": torch.get_rng_state()}, {"step": 2}, True)
    assert secret.read_text() == "mine"
    assert not (checkpoint / "config.json").is_symlink()
    assert translate.load(checkpoint).translate(["ab"])


def test_training_is_not_taken_up_from_half_a_description(checkpoint: Path) -> None:
    for missing in ("sources", "max_length", "recipe", "last"):
        whole = (checkpoint / "config.json").read_text()
        _rewrite(checkpoint / "config.json", lambda c, name=missing: c.pop(name))
        with pytest.raises(ValueError, match=r"is incomplete: .* is missing or wrong"):
            translate.resume(checkpoint, NullCallback())
        (checkpoint / "config.json").write_text(whole)


# Hugging Face's.


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("hub") / "bert"
    config = transformers.BertConfig(
        vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2,
        intermediate_size=8, max_position_embeddings=16,
    )  # fmt: skip
    transformers.BertModel(config).save_pretrained(folder)
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c", "d"]
    (folder / "vocab.txt").write_text("\n".join(words))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    return folder


@pytest.fixture
def hub(bert: Path, tmp_path: Path) -> Path:
    shutil.copytree(bert, tmp_path / "bert")
    return tmp_path / "bert"


class _Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return Path.touch, (self.mark,)


def test_no_code_of_a_folder_is_run(hub: Path, tmp_path: Path) -> None:
    assert load_folder(str(hub))[0].config.hidden_size == 8
    mark = tmp_path / "ran"
    (hub / "evil.py").write_text(f"import pathlib; pathlib.Path({str(mark)!r}).touch()")
    theirs = {name: f"evil.{name}" for name in ("AutoConfig", "AutoModel")}
    _rewrite(hub / "config.json", lambda c: c.update(auto_map=theirs, model_type="evil"))
    with pytest.raises(ValueError, match=r"cannot be read: "):
        load_folder(str(hub))
    assert not mark.exists()


def test_pickled_weights_are_not_opened(hub: Path, tmp_path: Path) -> None:
    (hub / "model.safetensors").unlink()
    with (hub / "pytorch_model.bin").open("wb") as file:
        pickle.dump(_Evil(tmp_path / "ran"), file)
    with pytest.raises(ValueError, match=r"cannot be read: "):
        load_folder(str(hub))
    assert not (tmp_path / "ran").exists()


_READ = """
import resource, sys, transformers, torch
from transformers import BertModel, BertTokenizer
from qkv.words.pieces import load_folder
size = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (size + {limit}, size + {limit}))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
for folder in sys.argv[1:]:
    try:
        load_folder(folder)
        print("loaded")
    except ValueError as error:
        print(str(error).replace(chr(10), " "))
"""


def test_descriptions_without_measure_are_refused(hub: Path) -> None:
    """In a process of its own, which may take so much memory and time and no more."""
    changes: dict[str, Callable[[Any], None]] = {
        "layers": lambda c: c.update(num_hidden_layers=10**9),
        "hidden": lambda c: c.update(hidden_size=10**9),
        "words": lambda c: c.update(vocab_size=10**10),
        "inner": lambda c: c.update(intermediate_size=10**10),
        "places": lambda c: c.update(max_position_embeddings=10**10),
        "heads": lambda c: c.update(num_attention_heads=-3),
        "kind": lambda c: c.update(model_type="../../etc"),
        "texts": lambda c: c.update(hidden_size="many"),
    }
    folders = [hub.with_name(name) for name in changes]
    for folder, change in zip(folders, changes.values(), strict=True):
        shutil.copytree(hub, folder)
        _rewrite(folder / "config.json", change)
    for name, content in (("deep", "[" * 200_000), ("pipe", None), ("cut", None)):
        folders.append(hub.with_name(name))
        shutil.copytree(hub, folders[-1])
        config, weights = folders[-1] / "config.json", folders[-1] / "model.safetensors"
        if name == "cut":
            weights.write_bytes(weights.read_bytes()[:-100])
        elif content is None:
            config.unlink()
            os.mkfifo(config)
        else:
            config.write_text(content)
    command = [sys.executable, "-c", _READ.format(limit=LIMIT), *map(str, folders)]
    told = subprocess.run(command, capture_output=True, text=True, timeout=300)
    lines = [line for line in told.stdout.splitlines() if line]
    assert len(lines) == len(folders), told.stderr[-2000:]
    for folder, line in zip(folders, lines, strict=True):
        assert "cannot be read: " in line, (folder.name, line)
        assert len(line) < 700, folder.name
