"""A model on disk: a folder of safetensors and JSON, consistent at every moment.

    config.json        format and version, the model's sizes, the recipe, which files count
    vocabulary.json    the two vocabularies
    weights-N.safetensors, training-N.safetensors
                       parameters, and the optimiser's state, after N steps

New files get new names; they become current when config.json is replaced, which is atomic. So a
process killed at any moment leaves the last good checkpoint. The folder holds no code.
"""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv import __version__
from qkv.atomic_write import replacing
from qkv.optional_dependencies import require
from qkv.translate.data import vocabulary
from qkv.translate.decoding.interpreter import Interpreter
from qkv.translate.models.factory import model_of

FORMAT, VERSION = "qkv.translate", 1

#: No description or vocabulary is as large as this.
MOST_JSON = 64 * 2**20

_CONFIG, _VOCABULARY = "config.json", "vocabulary.json"


@dataclass
class Checkpoint:
    """An open checkpoint folder."""

    folder: Path
    config: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def create(cls, folder: Path, interpreter: Interpreter, facts: dict[str, Any]) -> Checkpoint:
        """A new folder for a model, its vocabularies and the facts of its training."""
        if (folder / _CONFIG).exists():
            raise ValueError(
                f"{folder} already holds a checkpoint; continue with --resume, or name another one"
            )
        folder.mkdir(parents=True, exist_ok=True)
        source, target = interpreter.source, interpreter.target
        both = {"source": source.to_json()}
        if target is not source:  # joint vocabularies are written once
            both["target"] = target.to_json()
        _write(folder / _VOCABULARY, json.dumps(both, ensure_ascii=False).encode())
        config = {
            "format": FORMAT,
            "version": VERSION,
            "made by": f"qkv {__version__}",
            "model": interpreter.model.to_json(),
            "normalization": interpreter.form,
            **facts,
        }
        return cls(folder, config)

    @classmethod
    def open(cls, folder: Path) -> Checkpoint:
        """The checkpoint in a folder; raises ValueError where none can be read."""
        if not (folder / _CONFIG).is_file():
            raise ValueError(f"{folder} holds no checkpoint: there is no {_CONFIG} in it")
        config = _read_json(folder / _CONFIG)
        if not isinstance(config, dict) or config.get("format") != FORMAT:
            raise ValueError(f"{folder / _CONFIG} is not a checkpoint of qkv translate")
        version = config.get("version")
        if type(version) is not int or version < 1:
            raise ValueError(f"{folder} has format version {version!r}, which is unknown")
        if version > VERSION:
            raise ValueError(
                f"{folder} has format version {version}; "
                f"this qkv reads up to {VERSION}: a newer qkv is needed"
            )
        return cls(folder, config)

    def interpreter(self, which: str = "best") -> Interpreter:
        """The model and its vocabularies, as they were at the "best" or "last" moment."""
        both = _read_json(self.folder / _VOCABULARY)
        try:
            source = vocabulary.from_json(both["source"])
            target = vocabulary.from_json(both["target"]) if "target" in both else source
            weights = self.tensors(self.config[which]["weights"])
            path = self.folder / self.config[which]["weights"]
            sizes = self.config["model"], len(source), len(target)
            layers = self.config["model"].get("layers", 0)
            if layers > len(weights):
                raise ValueError(
                    f"{path} has {len(weights)} tensors, too few for {layers:,} layers"
                )
            with torch.device("meta"):  # sizes may be absurd: nothing is made that has no weights
                check_fit(model_of(*sizes), weights, path)
            model = model_of(*sizes)
            form = self.config["normalization"]
        except (AttributeError, KeyError, TypeError, RuntimeError, OverflowError) as error:
            reason = str(error)[:200]
            raise ValueError(
                f"{self.folder} is incomplete: {reason} is missing or wrong"
            ) from error
        restore(model, weights, path)
        return Interpreter(model.eval(), source, target, form)

    def tensors(self, name: str) -> dict[str, Tensor]:
        """The tensors of one of the checkpoint's files."""
        path = self.folder / Path(name).name  # a name, never a way out of the folder
        safetensors = require("safetensors", "translate")
        try:
            if path.exists() and not path.is_file():
                raise ValueError(f"{self.folder} is incomplete: {path.name!r} is no file")
            return require("safetensors.torch", "translate").load_file(path)  # type: ignore[no-any-return]
        except FileNotFoundError:
            raise ValueError(f"{self.folder} is incomplete: {path.name} is missing") from None
        except OSError as error:  # such as a name that no file may have
            reason = f"{path.name[:80]!r} cannot be read: {error.strerror}"
            raise ValueError(f"{self.folder} is incomplete: {reason}") from None
        except safetensors.SafetensorError as error:
            raise ValueError(f"{path} is truncated or damaged: {error}") from error

    def save(
        self,
        model: torch.nn.Module,
        training: dict[str, Tensor],
        progress: dict[str, Any],
        is_best: bool,
    ) -> None:
        """Write the model and the training state; `is_best` makes it the one to use."""
        step = progress["step"]
        weights, state = f"weights-{step}.safetensors", f"training-{step}.safetensors"
        to_bytes = require("safetensors.torch", "translate").save
        _write(self.folder / weights, to_bytes(parameters(model)))
        _write(self.folder / state, to_bytes(training))
        self.config["last"] = {"weights": weights, "training": state, "progress": progress}
        if is_best or "best" not in self.config:
            self.config["best"] = {"weights": weights, "progress": progress}
        _write(self.folder / _CONFIG, json.dumps(self.config, indent=1).encode())
        counted = {weights, state, self.config["best"]["weights"]}
        for old in self.folder.glob("*.safetensors"):
            if old.name not in counted:
                old.unlink()


def load(folder: Path | str, which: str = "best") -> Interpreter:
    """The translator in a folder that ``qkv translate train`` made."""
    return Checkpoint.open(Path(folder)).interpreter(which)


def parameters(model: torch.nn.Module) -> dict[str, Tensor]:
    """The parameters of a model by name; one that is used twice, once."""
    return {name: each.detach().contiguous() for name, each in model.named_parameters()}


def restore(model: torch.nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Put tensors into the parameters of a model, all of them and no others."""
    check_fit(model, tensors, path)
    for name, parameter in model.named_parameters():
        parameter.data.copy_(tensors[name])


def check_fit(model: torch.nn.Module, tensors: dict[str, Tensor], path: Path) -> None:
    """Raise ValueError unless the tensors are those of the model's parameters."""
    parameters = dict(model.named_parameters())
    if parameters.keys() != tensors.keys():
        odd = sorted(parameters.keys() ^ tensors.keys())[0]
        raise ValueError(f"{path} does not fit the model that config.json describes: {odd!r}")
    for name, parameter in parameters.items():
        if parameter.shape != tensors[name].shape:
            raise ValueError(
                f"{name!r} in {path} must have shape {tuple(parameter.shape)}; "
                f"got {tuple(tensors[name].shape)}"
            )


def _write(path: Path, content: bytes) -> None:
    """Write a file so that it is there whole or not at all."""
    with replacing(path) as unfinished, unfinished.open("xb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())  # config.json must not reach the disk before what it names


def _read_json(path: Path) -> Any:
    try:
        if not path.is_file() and path.exists():  # a pipe or a device would never end
            raise ValueError("it is no regular file")
        if path.stat().st_size > MOST_JSON:
            raise ValueError(f"it has more than {MOST_JSON >> 20} MB")
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"{path.parent} is incomplete: {path.name} is missing") from None
    except OSError as error:  # such as a link to itself
        raise ValueError(f"{path} cannot be read: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is truncated or damaged: {error}") from error
