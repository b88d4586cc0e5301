"""Models by their description."""

from __future__ import annotations

from typing import Any

from qkv.translate.models.base import Model
from qkv.translate.models.recurrent import RNNConfig, Translator
from qkv.translate.models.transformer import Transformer, TransformerConfig


def model_of(description: dict[str, Any], source: int, target: int) -> Model[Any, Any]:
    """The model that :meth:`Model.to_json` described, for vocabularies of these sizes."""
    options = dict(description)
    kind = options.pop("kind")
    if kind == "recurrent":
        return Translator(RNNConfig(**options), source, target)
    if kind == "transformer":
        return Transformer(TransformerConfig(**options), source, target)
    raise ValueError(f"a model must be recurrent or transformer; got {kind!r:.80}")
