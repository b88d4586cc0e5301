"""A transformer with the translator's interface, of layers of `qkv.nn`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.mask import Causal, Lengths
from qkv.nn import Encoder, EncoderLayer, HeadSimilarity, KVCache, MultiheadAttention, Sinusoidal
from qkv.similarity import Additive, Bilinear, Gated
from qkv.translate.data.vocabulary import PAD
from qkv.translate.models.base import Model, Step

_LEARNED: dict[str, HeadSimilarity] = {"additive": Additive, "bilinear": Bilinear, "gated": Gated}


@dataclass(frozen=True)
class TransformerConfig:
    """The sizes of a :class:`Transformer`; `layers` on either side."""

    d_model: int = 256
    heads: int = 4
    d_ff: int = 512
    layers: int = 3
    similarity: str = "scaled_dot"
    tied: bool = False
    dropout: float = 0.2


class LayerKeysValues(NamedTuple):
    """Keys and values (rows, heads, t, d) of one layer."""

    key: Tensor
    value: Tensor

    def select(self, rows: Tensor) -> LayerKeysValues:
        return LayerKeysValues(self.key[rows], self.value[rows])

    def cache(self, room: int = 0) -> KVCache:
        """A cache that holds them, with room for more."""
        cache = KVCache(self.key.shape[-2] + room)
        cache.append(self.key, self.value)
        return cache


class SourceMemory(NamedTuple):
    """The encoded source, and each decoder layer's keys and values of it."""

    states: Tensor  # (batch, s, d_model)
    lengths: Tensor  # (batch,)
    layers: tuple[LayerKeysValues, ...]  # one for each layer, none while gradients are needed

    def select(self, sentences: Tensor) -> SourceMemory:
        layers = tuple(
            LayerKeysValues(*(part[sentences] for part in layer)) for layer in self.layers
        )
        return SourceMemory(self.states[sentences], self.lengths[sentences], layers)


class DecoderCache(NamedTuple):
    """The tokens so far: each layer's keys and values, n rows for each sentence."""

    rows: int
    layers: tuple[
        LayerKeysValues, ...
    ]  # parts (batch · rows, heads, t, d); none before the first token

    @property
    def length(self) -> int:
        return self.layers[0].key.shape[-2] if self.layers else 0

    def select(self, sentences: Tensor, rows: Tensor) -> DecoderCache:
        entries = (sentences.unsqueeze(-1) * self.rows + rows).flatten()
        layers = tuple(layer.select(entries) for layer in self.layers)
        return DecoderCache(rows.shape[1], layers)


class DecoderLayer(nn.Module):
    """Self-attention, attention to the source, feed-forward; pre-norm, with residuals."""

    def __init__(self, sizes: TransformerConfig, similarity: HeadSimilarity) -> None:
        super().__init__()
        d, dropout = sizes.d_model, sizes.dropout

        def attention(**options: Any) -> MultiheadAttention:
            return MultiheadAttention(
                d, sizes.heads, dropout, batch_first=True, similarity=similarity, **options
            )

        self.said, self.source = attention(mask=Causal()), attention()
        self.wide, self.narrow = nn.Linear(d, sizes.d_ff), nn.Linear(sizes.d_ff, d)
        self.norms = nn.ModuleList(nn.LayerNorm(d) for _ in range(3))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, memory: SourceMemory) -> Tensor:
        """All tokens (batch, t, d) at once, under a causal mask."""
        now = self.norms[0](x)
        x = x + self.dropout(self.said(now, now, now, need_weights=False)[0])
        states, mask = memory.states, Lengths(memory.lengths)
        attended = self.source(self.norms[1](x), states, states, need_weights=False, mask=mask)[0]
        return self._fed_forward(x + self.dropout(attended))

    def step(
        self, x: Tensor, memory: SourceMemory, source: LayerKeysValues, past: LayerKeysValues | None
    ) -> tuple[Tensor, LayerKeysValues, Tensor]:
        """The next token of each row (batch, n, d), its keys and values, and its weights."""
        now = self.norms[0](x).flatten(0, 1).unsqueeze(1)  # (batch · n, 1, d)
        cache = KVCache(1) if past is None else past.cache(room=1)
        answer, _ = self.said(now, now, now, need_weights=False, cache=cache)
        x = x + answer.view_as(x)
        # The rows of a sentence are queries of one source.
        answer, weights = self.source(
            self.norms[1](x), None, None, mask=Lengths(memory.lengths), cache=source.cache()
        )
        return self._fed_forward(x + answer), LayerKeysValues(cache.key, cache.value), weights

    def _fed_forward(self, x: Tensor) -> Tensor:
        hidden = self.dropout(F.relu(self.wide(self.norms[2](x))))
        return x + self.dropout(self.narrow(hidden))  # type: ignore[no-any-return]


class Transformer(Model[SourceMemory, DecoderCache]):
    """A transformer encoder-decoder with any similarity, used and trained as the translator is.

    The weights that a step gives are those of its last layer, averaged over the heads.
    """

    def __init__(self, sizes: TransformerConfig, source: int, target: int) -> None:
        super().__init__()
        self.sizes, d = sizes, sizes.d_model
        similarity = _LEARNED.get(sizes.similarity, sizes.similarity)
        self.source_embedding = nn.Embedding(source, d, padding_idx=PAD)
        self.target_embedding = nn.Embedding(target, d, padding_idx=PAD)
        self.positions = Sinusoidal()
        self.encoder = Encoder(
            None,
            [
                EncoderLayer(
                    d, sizes.heads, sizes.d_ff, norm="pre", dropout=sizes.dropout,
                    similarity=similarity,
                )
                for _ in range(sizes.layers)
            ],
            norm=nn.LayerNorm(d),
        )  # fmt: skip
        self.layers = nn.ModuleList(DecoderLayer(sizes, similarity) for _ in range(sizes.layers))
        self.norm, self.dropout = nn.LayerNorm(d), nn.Dropout(sizes.dropout)
        self.output = nn.Linear(d, target)
        for embedding in (self.source_embedding, self.target_embedding):
            nn.init.normal_(embedding.weight, std=d**-0.5)
            embedding.weight.data[PAD] = 0.0
        nn.init.zeros_(self.output.bias)
        if sizes.tied:
            self.output.weight = self.target_embedding.weight

    def encode(self, source: Tensor, lengths: Tensor) -> SourceMemory:
        embedded = self._embedded(self.source_embedding, source)
        states = self.encoder(embedded, Lengths(lengths))
        if torch.is_grad_enabled():
            return SourceMemory(states, lengths, ())
        return SourceMemory(
            states, lengths, tuple(self._source_keys_values(layer, states) for layer in self.layers)
        )

    def start(self, memory: SourceMemory) -> DecoderCache:
        return DecoderCache(1, ())

    def step(self, memory: SourceMemory, state: DecoderCache, tokens: Tensor) -> Step[DecoderCache]:
        if torch.is_grad_enabled():
            raise RuntimeError("a transformer takes single steps under torch.no_grad() only")
        x = self._embedded(self.target_embedding, tokens.unsqueeze(-1), state.length).squeeze(-2)
        new_layers = []
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            past = state.layers[i] if state.layers else None
            x, new, weights = layer.step(x, memory, memory.layers[i], past)
            new_layers.append(new)
        return Step(self.norm(x), DecoderCache(tokens.shape[1], tuple(new_layers)), weights)

    def forced(self, memory: SourceMemory, tokens: Tensor) -> Tensor:
        x = self._embedded(self.target_embedding, tokens)
        for layer in self.layers:
            x = layer(x, memory)
        return self.dropout(self.norm(x))  # type: ignore[no-any-return]

    def to_json(self) -> dict[str, Any]:
        return {"kind": "transformer", **asdict(self.sizes)}

    def _embedded(self, embedding: nn.Embedding, tokens: Tensor, start: int = 0) -> Tensor:
        # Rows are short, as an output layer wants them, and made as long as positions are.
        scaled = embedding(tokens) * self.sizes.d_model**0.5
        return self.dropout(self.positions(scaled, start))  # type: ignore[no-any-return]

    def _source_keys_values(self, layer: nn.Module, states: Tensor) -> LayerKeysValues:
        """A layer's keys and values of the source, computed once for all steps."""
        assert isinstance(layer, DecoderLayer)
        cache = KVCache(states.shape[1])
        layer.source(states[:, :0], states, states, need_weights=False, cache=cache)
        return LayerKeysValues(cache.key, cache.value)
