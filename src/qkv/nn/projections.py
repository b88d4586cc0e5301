"""What a multi-head layer has for parameters: projections of tokens to heads, and of heads back.

Names, shapes and initial values are those of :class:`torch.nn.MultiheadAttention`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from qkv.linear import Linear, linear
from qkv.mask import Mask, Tile
from qkv.nn.torch_masks import append_visible_keys


class Sizes(NamedTuple):
    """The sizes of a layer."""

    embed_dim: int
    num_heads: int
    kv_heads: int
    kdim: int
    vdim: int


class ExtraKeys(NamedTuple):
    """Keys that a layer has beside those it is given, each with a value."""

    learned: bool
    zero: bool


class Tokens(NamedTuple):
    """What heads compare and pool."""

    query: Tensor  # (batch, heads, n, head_dim)
    key: Tensor  # (batch, kv_heads, m, head_dim)
    value: Tensor


class Projections(nn.Module):
    """The way from tokens to heads and back."""

    def __init__(
        self,
        sizes: Sizes,
        *,
        bias: bool,
        extra: ExtraKeys,
        batch_first: bool,
        device: torch.device | str | None,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.embed_dim, self.num_heads, self.kv_heads, self.kdim, self.vdim = sizes
        self.head_dim = self.embed_dim // self.num_heads
        self.batch_first, self.add_zero_attn = batch_first, extra.zero

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))

        embed_dim, kv_dim = self.embed_dim, self.kv_heads * self.head_dim
        self._sizes = [embed_dim, kv_dim, kv_dim]
        packed = self.kdim == self.vdim == embed_dim
        self.in_proj_weight = parameter(sum(self._sizes), embed_dim) if packed else None
        self.q_proj_weight = None if packed else parameter(embed_dim, embed_dim)
        self.k_proj_weight = None if packed else parameter(kv_dim, self.kdim)
        self.v_proj_weight = None if packed else parameter(kv_dim, self.vdim)
        self.in_proj_bias = parameter(sum(self._sizes)) if bias else None
        self.out_proj = Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.bias_k = parameter(1, 1, kv_dim) if extra.learned else None
        self.bias_v = parameter(1, 1, kv_dim) if extra.learned else None
        self._draw()

    def reset_parameters(self) -> None:
        """Draw every parameter anew, also after `to_empty` from the meta device."""
        self.out_proj.reset_parameters()
        self._draw()

    def _draw(self) -> None:
        # In torch's order, so that one seed gives both the same layer.
        for weight in (
            self.in_proj_weight,
            self.q_proj_weight,
            self.k_proj_weight,
            self.v_proj_weight,
        ):
            if weight is not None:
                nn.init.xavier_uniform_(weight)
        if self.in_proj_bias is not None:
            nn.init.zeros_(self.in_proj_bias)
            nn.init.zeros_(self.out_proj.bias)
        if self.bias_k is not None and self.bias_v is not None:
            nn.init.xavier_normal_(self.bias_k)
            nn.init.xavier_normal_(self.bias_v)

    @property
    def has_extra_keys(self) -> bool:
        return self.bias_k is not None or self.add_zero_attn

    def to_heads(self, query: Tensor, key: Tensor, value: Tensor) -> Tokens:
        """(batch, n, embed_dim) and so on, or n first, or no batch, -> (batch, heads, n, …)."""
        projected = self._projected(query, key, value)
        heads = (self.num_heads, self.kv_heads, self.kv_heads)
        return Tokens(*map(self._split, projected, heads))

    def from_heads(self, answer: Tensor, batched: bool) -> Tensor:
        """(batch, heads, n, head_dim) -> (batch, n, embed_dim), or n first, or no batch."""
        answer = answer.permute(0, 2, 1, 3) if self.batch_first else answer.permute(2, 0, 1, 3)
        answer = answer.flatten(-2)  # (batch, n, embed_dim), or n first
        whole: Tensor = self.out_proj(answer if batched else answer.squeeze(self._batch_axis))
        return whole

    def with_extra_keys(self, tokens: Tokens, mask: Mask | None) -> tuple[Tokens, Mask | None]:
        """Beside the keys given, a learned one and one of zeros, which every query may see."""
        query, key, value = tokens
        keys, values = [], []
        if self.bias_k is not None and self.bias_v is not None:
            keys.append(self._split(self.bias_k, self.kv_heads))
            values.append(self._split(self.bias_v, self.kv_heads))
        if self.add_zero_attn:
            keys.append(key.new_zeros(1, 1, 1, key.shape[-1]))
            values.append(value.new_zeros(1, 1, 1, value.shape[-1]))
        if not keys:
            return tokens, mask
        if mask is not None:
            n, m = query.shape[-2], key.shape[-2]
            tile = Tile(0, n, n, m, (query.shape[0], self.num_heads), query.device)
            mask = append_visible_keys(mask, len(keys), tile)
        return Tokens(query, _appended(key, keys), _appended(value, values)), mask

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        bias: Tensor | None = self.in_proj_bias
        if bias is not None and bias.dtype != self.out_proj.weight.dtype:
            bias = bias.to(self.out_proj.weight.dtype)  # as torch's layer takes it
        if self.in_proj_weight is not None and query is key and key is value:
            packed = linear(query, self.in_proj_weight, bias)
            return tuple(packed.split(self._sizes, dim=-1))
        if self.in_proj_weight is not None:
            weights: Any = self.in_proj_weight.split(self._sizes)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases: Any = (None, None, None)
        if bias is not None:
            biases = bias.split(self._sizes)
        return tuple(map(linear, (query, key, value), weights, biases))

    def _split(self, tokens: Tensor, heads: int) -> Tensor:
        if tokens.ndim == 2:
            tokens = tokens.unsqueeze(self._batch_axis)
        # (batch, n, heads, head_dim), or n first
        tokens = tokens.unflatten(-1, (heads, self.head_dim))
        return tokens.permute(0, 2, 1, 3) if self.batch_first else tokens.permute(1, 2, 0, 3)

    @property
    def _batch_axis(self) -> int:
        return 0 if self.batch_first else 1


def _appended(tokens: Tensor, extra: list[Tensor]) -> Tensor:
    """(batch, heads, m, d) and the `extra` tokens behind them, each broadcast over the batch."""
    each = (token.to(tokens.dtype).expand(*tokens.shape[:2], 1, -1) for token in extra)
    return torch.cat([tokens, *each], dim=2)
