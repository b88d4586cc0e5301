"""The multi-head layer and stacks of it: the encoder of a transformer."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Literal, TypedDict, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv.bias import BiasLike
from qkv.linear import Linear
from qkv.mask import MaskLike
from qkv.nn.cache import KVCache
from qkv.nn.heads import HeadSimilarity
from qkv.nn.multihead import MultiheadAttention
from qkv.nn.positions import Rotary

Activation = Callable[[Tensor], Tensor]

ACTIVATIONS: dict[str, Activation] = {"relu": F.relu, "gelu": F.gelu}


class AttentionOptions(TypedDict, total=False):
    """What an encoder layer hands on to its :class:`MultiheadAttention`."""

    similarity: HeadSimilarity
    kv_heads: int | None
    mask: MaskLike | None
    position_bias: BiasLike | None
    rotary: Rotary | None
    bias: bool
    device: torch.device | str | None
    dtype: torch.dtype | None


class EncoderLayer(nn.Module):
    """Multi-head attention, then a feed-forward network; each with a residual and a layer norm.

    ``norm="post"``: x = norm(x + heads(x)), then x = norm(x + feed_forward(x));
    ``norm="pre"``:  x = x + heads(norm(x)), then x = x + feed_forward(norm(x)).

    The state of a :class:`torch.nn.TransformerEncoderLayer` loads into it, and answers agree.

    >>> import torch, qkv.nn
    >>> layer = qkv.nn.EncoderLayer(64, heads=8, d_ff=256, similarity="gaussian")
    >>> layer(torch.randn(2, 11, 64)).shape
    torch.Size([2, 11, 64])
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        d_ff: int,
        *,
        norm: Literal["pre", "post"] = "post",
        activation: Literal["relu", "gelu"] | Activation = "relu",
        dropout: float = 0.1,
        eps: float = 1e-5,
        **attention: Unpack[AttentionOptions],
    ) -> None:
        super().__init__()
        if norm not in ("pre", "post"):
            raise ValueError(f"norm must be 'pre' or 'post'; got {norm!r}")
        if not callable(activation) and activation not in ACTIVATIONS:
            raise ValueError(
                f"activation must be {' or '.join(map(repr, ACTIVATIONS))} or a callable; "
                f"got {activation!r}"
            )
        device, dtype = attention.get("device"), attention.get("dtype")
        bias = attention.get("bias", True)
        # These names are torch's, so that its states load.
        self.self_attn = MultiheadAttention(
            d_model, heads, dropout=dropout, batch_first=True, **attention
        )
        self.linear1 = Linear(d_model, d_ff, bias=bias, device=device, dtype=dtype)
        self.linear2 = Linear(d_ff, d_model, bias=bias, device=device, dtype=dtype)
        self.norm1 = nn.LayerNorm(d_model, eps, bias=bias, device=device, dtype=dtype)
        self.norm2 = nn.LayerNorm(d_model, eps, bias=bias, device=device, dtype=dtype)
        self.dropout = nn.Dropout(dropout)
        self.norm = norm
        self.activation = activation if callable(activation) else ACTIVATIONS[activation]

    def reset_parameters(self) -> None:
        """Draw every parameter anew, also after `to_empty` from the meta device."""
        for part in (self.self_attn, self.linear1, self.linear2, self.norm1, self.norm2):
            part.reset_parameters()

    def forward(
        self, x: Tensor, mask: MaskLike | None = None, *, cache: KVCache | None = None
    ) -> Tensor:
        """(batch, n, d_model) -> (batch, n, d_model); `mask` means True = may attend."""
        if self.norm == "pre":
            x = x + self._attended(self.norm1(x), mask, cache)
            return x + self._fed_forward(self.norm2(x))
        x = self.norm1(x + self._attended(x, mask, cache))
        return self.norm2(x + self._fed_forward(x))  # type: ignore[no-any-return]

    def weights(self, x: Tensor, mask: MaskLike | None = None) -> Tensor:
        """How much each token looks at each other one, head by head: (batch, heads, n, n)."""
        if self.norm == "pre":
            x = self.norm1(x)
        _, weights = self.self_attn(x, x, x, average_attn_weights=False, mask=mask)
        return weights  # type: ignore[no-any-return]

    def _attended(self, x: Tensor, mask: MaskLike | None, cache: KVCache | None) -> Tensor:
        answer, _ = self.self_attn(x, x, x, need_weights=False, mask=mask, cache=cache)
        return self.dropout(answer)  # type: ignore[no-any-return]

    def _fed_forward(self, x: Tensor) -> Tensor:
        hidden = self.dropout(self.activation(self.linear1(x)))  # (batch, n, d_ff)
        return self.dropout(self.linear2(hidden))  # type: ignore[no-any-return]

    def extra_repr(self) -> str:
        return f"norm={self.norm!r}"


class Embedding(nn.Module):
    """Tokens to vectors: a row for each word, for its segment if there are such, and a position.

    `positions` is :class:`Sinusoidal`, :class:`Learned` or any module (x, start) -> x.
    """

    def __init__(
        self,
        vocabulary: int,
        d_model: int,
        positions: nn.Module | None = None,
        *,
        segments: int = 0,
        norm: nn.Module | None = None,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.words = nn.Embedding(vocabulary, d_model)
        self.segments = nn.Embedding(segments, d_model) if segments else None
        self.positions, self.norm, self.dropout = positions, norm, nn.Dropout(dropout)

    def forward(self, tokens: Tensor, segments: Tensor | None = None, start: int = 0) -> Tensor:
        """(…, n) whole numbers -> (…, n, d_model); the first token stands at position `start`."""
        x: Tensor = self.words(tokens)
        if self.segments is not None:
            x = x + self.segments(torch.zeros_like(tokens) if segments is None else segments)
        elif segments is not None:
            raise ValueError("segments were given to an Embedding made without segments")
        if self.positions is not None:
            x = self.positions(x, start)
        if self.norm is not None:
            x = self.norm(x)
        return self.dropout(x)  # type: ignore[no-any-return]


class Encoder(nn.Module):
    """Embeddings, then a stack of layers.

    >>> import torch, qkv.nn
    >>> from qkv.nn import Embedding, Encoder, EncoderLayer, Rotary, Sinusoidal
    >>> encoder = Encoder(
    ...     Embedding(1000, 64, Sinusoidal()),
    ...     [EncoderLayer(64, heads=4, d_ff=256, norm="pre") for _ in range(6)],
    ...     norm=torch.nn.LayerNorm(64),
    ... )
    >>> encoder(torch.randint(1000, (2, 11)), mask=qkv.mask.Lengths([11, 7])).shape
    torch.Size([2, 11, 64])

    Positions can also be given to each layer, with ``EncoderLayer(…, rotary=Rotary())``.

    Args:
        embedding: None where the encoder is given vectors, not tokens.
        layers: from the first to the last.
        norm: applied after the last layer, as models with ``norm="pre"`` want it.
    """

    def __init__(
        self,
        embedding: Embedding | None,
        layers: Iterable[EncoderLayer],
        norm: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.embedding, self.layers, self.norm = embedding, nn.ModuleList(layers), norm
        if not self.layers:
            raise ValueError("layers must hold at least one layer; got none")

    def forward(
        self,
        x: Tensor,
        mask: MaskLike | None = None,
        *,
        segments: Tensor | None = None,
        caches: Sequence[KVCache] | None = None,
    ) -> Tensor:
        """Tokens (batch, n), or vectors (batch, n, d), -> contextual vectors, (batch, n, d).

        Args:
            mask: who may look at whom, in qkv's meaning: True = may attend.
            segments: the segment of each token, (batch, n); None: all in the first.
            caches: one for each layer, to continue where the last call ended.
        """
        if caches is not None and len(caches) != len(self.layers):
            raise ValueError(
                f"caches must be one for each of the {len(self.layers)} layers; got {len(caches)}"
            )
        x = self._embedded(x, segments, caches[0].length if caches else 0)
        for index, layer in enumerate(self.layers):
            x = layer(x, mask, cache=caches[index] if caches else None)
        return x if self.norm is None else self.norm(x)

    def weights(
        self, x: Tensor, mask: MaskLike | None = None, *, segments: Tensor | None = None
    ) -> list[Tensor]:
        """Of each layer, how much each token looks at each other: (batch, heads, n, n)."""
        x = self._embedded(x, segments, 0)
        weights = []
        for layer in self.layers:
            assert isinstance(layer, EncoderLayer)
            weights.append(layer.weights(x, mask))
            x = layer(x, mask)
        return weights

    def _embedded(self, x: Tensor, segments: Tensor | None, start: int) -> Tensor:
        if self.embedding is None:
            return x
        if x.is_floating_point():
            raise TypeError(f"x must be tokens, whole numbers, for the embedding; got {x.dtype}")
        return self.embedding(x, segments, start)  # type: ignore[no-any-return]
