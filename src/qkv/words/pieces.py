"""The attention between the pieces of a sentence inside a model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from qkv.optional_dependencies import require
from qkv.recording import record
from qkv.visualization import summary
from qkv.words.pretrained import minilm, minilm_tokenizer
from qkv.words.sentence import SentenceAttention, words_of

#: No description or vocabulary of a model is as large as this.
MOST_JSON = 256 * 2**20

#: So many layers or experts may be described, whatever the weights.
FEW_LAYERS = 1000


class Read(NamedTuple):
    """A sentence as a model read it."""

    pieces: list[str]
    weights: Tensor  # (layers, heads, n, n)


def by_pieces(
    sentence: str,
    folder: str | None = None,
    layer: int | None = None,
    head: int | None = None,
    rollout: bool = False,
) -> SentenceAttention:
    """The attention between pieces, special tokens included, with nothing merged or hidden.

    Args:
        sentence: words of any kind.
        folder: a Hugging Face model in safetensors; MiniLM if None.
        layer: the last if None.
        head: the mean of all if None.
        rollout: through all layers instead of one, see :func:`qkv.summary.rollout`.
    """
    words_of(sentence)  # refuses what holds none
    pieces, weights = _by_minilm(sentence) if folder is None else _by_folder(sentence, folder)
    for name, chosen, size in (
        ("layer", layer, weights.shape[0]),
        ("head", head, weights.shape[1]),
    ):
        if chosen is not None and not 0 <= chosen < size:
            raise ValueError(f"{name} must be between 0 and {size - 1}; got {chosen}")
    every = weights.double().numpy()
    if rollout:
        if layer is not None or head is not None:
            raise ValueError("a rollout goes through all layers and heads: leave out layer, head")
        through = summary.rollout(weights).double().numpy()
        return SentenceAttention(
            pieces, through, ["rollout through all layers"], through[None, None]
        )
    depth = len(every) - 1 if layer is None else layer
    shown = every[depth].mean(0) if head is None else every[depth, head]
    note = f"layer {depth}, {'mean of its heads' if head is None else f'head {head}'}"
    return SentenceAttention(pieces, shown, [note], every)


def _by_minilm(sentence: str) -> Read:
    encoding = minilm_tokenizer().encode(sentence)
    model = minilm()
    with torch.no_grad(), record(model) as calls:
        model(torch.tensor([encoding.ids]))
        return Read(list(encoding.tokens), calls.stacked())


def _by_folder(sentence: str, folder: str) -> Read:
    model, tokenizer = load_folder(folder)
    encoded = tokenizer(sentence, return_tensors="pt")
    with torch.no_grad(), record(model) as calls:
        model(**encoded)
        weights = calls.stacked()
    return Read(tokenizer.convert_ids_to_tokens(encoded["input_ids"][0].tolist()), weights)


def load_folder(folder: str) -> tuple[Any, Any]:
    """A Hugging Face model and its tokenizer; nothing is fetched, and no code of theirs is run."""
    transformers = require("transformers", "transformers")
    options = {"local_files_only": True, "trust_remote_code": False}
    try:
        _check_files(Path(folder))
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, **options)
        model = transformers.AutoModel.from_pretrained(folder, use_safetensors=True, **options)
    except Exception as error:  # whatever readers of many formats may come up with
        reason = (str(error).strip() or type(error).__name__).split("\n")[0]
        raise ValueError(f"the model in {folder!r} cannot be read: {reason[:500]}") from error
    return model.eval(), tokenizer


def _check_files(folder: Path) -> None:
    """Refuse descriptions without end, and those of more layers than there are weights for."""
    for file in folder.glob("*.json"):
        if not file.is_file():  # a pipe or a device would be read for ever
            raise ValueError(f"{file.name} is no regular file")
        if file.stat().st_size > MOST_JSON:
            raise ValueError(f"{file.name} has more than {MOST_JSON >> 20} MB")
    opened = require("safetensors", "transformers").safe_open
    tensors = 0
    for file in folder.glob("*.safetensors"):
        with opened(file, "pt") as weights:
            tensors += len(weights.keys())
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    for name, count in _counts(config):
        if count > max(FEW_LAYERS, tensors):  # each would be made before its weights are missed
            raise ValueError(f"config.json has {name} = {count:,}, and there are {tensors} tensors")


def _counts(config: Any) -> Iterator[tuple[str, int]]:
    """The numbers of layers and the like in a description, however deep they stand."""
    if not isinstance(config, dict):
        return
    for name, value in config.items():
        if isinstance(value, int) and any(word in name for word in ("layer", "expert", "block")):
            yield name, value
        yield from _counts(value)
