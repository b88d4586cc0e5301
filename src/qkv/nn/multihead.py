"""Multi-head attention: several heads attend in parallel, each in its own projection."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from qkv import cluster, nested, pooling
from qkv.bias import BiasLike, as_bias
from qkv.cluster.sharding import Layout, check_layout
from qkv.mask import Causal, Mask, MaskLike, as_mask, intersection
from qkv.nn.cache import KVCache, prepare
from qkv.nn.errors import (
    InputError,
    check_key_and_value,
    check_mask_axes,
    check_query,
    check_sizes,
)
from qkv.nn.heads import HeadSimilarity, PerHead, attend_per_head, for_heads, reset_parameters
from qkv.nn.paged import PagedCache, attend_pages
from qkv.nn.positions import Rotary
from qkv.nn.projections import ExtraKeys, Projections, Sizes, Tokens
from qkv.nn.torch_masks import TorchMasks
from qkv.similarity import ScaledDot, Similarity
from qkv.with_weights import attend_with_weights


class MultiheadAttention(Projections):
    """Concat(head₁, …, head_h) W_O with head_i = Attention(Q W_Qⁱ, K W_Kⁱ, V W_Vⁱ), Eq. 14.

    A drop-in for :class:`torch.nn.MultiheadAttention`: the same arguments and defaults, the same
    meaning of `attn_mask` and `key_padding_mask` (True = may *not* attend), the same shapes,
    initial values and state_dict keys. A query that may attend to nothing has weights and answer
    0 (before W_O), never NaN.

    >>> import torch, qkv.nn
    >>> layer = qkv.nn.MultiheadAttention(64, 8, batch_first=True, similarity=qkv.Additive)
    >>> words = torch.randn(2, 11, 64)
    >>> answer, weights = layer(words, words, words, mask=qkv.mask.Lengths([11, 7]))
    >>> answer.shape, weights.shape
    (torch.Size([2, 11, 64]), torch.Size([2, 11, 11]))

    Args:
        similarity: how heads compare, in `embed_dim // num_heads` dimensions. One without
            parameters serves all heads. A learned one is a pattern from which every head gets its
            own; a class is made to fit. A sequence names one for each head.
        kv_heads: the number of key and value heads, each shared by a group of query heads.
        mask: who may look at whom in every call, in qkv's meaning (True = may attend), over
            (batch, heads, n, m).
        position_bias: what every call adds to the scores by position, see :mod:`qkv.bias`.
        rotary: rotates queries and keys by their positions. The last query stands at the last key.
        group: a process group of torch.distributed over which the sequence is sharded, as
            `layout` of :func:`qkv.cluster.attend` says; with a cache of that group all ranks have
            the same queries, and each some of the keys.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        similarity: HeadSimilarity = None,
        kv_heads: int | None = None,
        mask: MaskLike | None = None,
        position_bias: BiasLike | None = None,
        rotary: Rotary | None = None,
        group: Any = None,
        layout: Layout = "ring",
    ) -> None:
        sizes = Sizes(
            embed_dim,
            num_heads,
            num_heads if kv_heads is None else kv_heads,
            embed_dim if kdim is None else kdim,
            embed_dim if vdim is None else vdim,
        )
        check_sizes(*sizes[:3], dropout)
        super().__init__(
            sizes, bias=bias, extra=ExtraKeys(add_bias_kv, add_zero_attn), batch_first=batch_first,
            device=device, dtype=dtype,
        )  # fmt: skip
        self.dropout = dropout
        self.group, self.layout = group, check_layout(layout)
        chosen = for_heads(similarity, num_heads, self.head_dim)
        self.similarity: Similarity | PerHead = chosen.to(device=device, dtype=dtype)
        self.mask = None if mask is None else as_mask(mask)
        self.position_bias = None if position_bias is None else as_bias(position_bias)
        #: Where True, `mask` counts only in calls whose query and key are one tensor.
        self.mask_in_self_attention_only = False
        self.rotary = rotary

    @property
    def _qkv_same_embed_dim(self) -> bool:
        # torch's encoder layer asks for this before it bypasses the layer that it holds, by a
        # kernel of its own that knows neither our similarities nor our masks.
        ours = (self.mask, self.position_bias, self.rotary, self.group)
        same = self.in_proj_weight is not None and self.kv_heads == self.num_heads
        plain = type(self.similarity) is ScaledDot and self.similarity.scale is None
        return same and plain and all(each is None for each in ours)

    #: Torch's encoder layer puts masks together by this, for the kernel by which it bypasses ours.
    merge_masks = nn.MultiheadAttention.merge_masks

    def reset_parameters(self) -> None:
        """Draw every parameter anew, also after `to_empty` from the meta device."""
        super().reset_parameters()
        reset_parameters(self.similarity)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        *,
        mask: MaskLike | None = None,
        cache: KVCache | PagedCache | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """The answers, and the weights where `need_weights` asks for them.

        Args:
            query: (n, batch, embed_dim), or (batch, n, embed_dim) where `batch_first`, or
                (n, embed_dim).
            key: (m, batch, kdim) and so on. None, with `value`, where `cache` holds all keys.
            value: (m, batch, vdim) and so on.
            key_padding_mask: (batch, m); True or −inf: no query may attend to this key.
            need_weights: whether to give the weights: (batch, n, m), or (batch, heads, n, m)
                where not `average_attn_weights`.
            attn_mask: (n, m) or (batch · heads, n, m); True or −inf: may not attend.
            is_causal: says that `attn_mask` is causal, which is quicker than reading it.
            mask: who may look at whom, in qkv's meaning, beside all of the above.
            cache: remembers key and value for the next call; attention is over all it holds, and
                all masks are over these.
        """
        masks = TorchMasks(attn_mask, key_padding_mask, is_causal)
        limits = self._limits(query is key, mask)
        if query.is_nested and query.ndim == 3:
            self._check_nested(key, value, masks.given or cache is not None)
            return self._of_nested(query, key, value, limits), None
        batched = query.ndim == 3
        key, value = self._checked(query, key, value, cache)
        check_mask_axes(query, key_padding_mask, attn_mask)
        self._check_call(need_weights, masks.given, cache)
        tokens = self.to_heads(query, key, value)
        if self.rotary is not None:
            tokens = _rotated(tokens, self.rotary, past=0 if cache is None else cache.length)
        similarity = self.similarity
        if cache is not None:
            similarity, tokens = _remembered(tokens, similarity, cache)
        weights = None
        if self.group is not None:
            answer = self._over_ranks(similarity, tokens, limits, cache)
        else:
            whole = self._over_all(masks, limits, tokens, cache)
            if isinstance(cache, PagedCache):
                answer = attend_pages(cache, similarity, tokens.query, whole)
            else:
                answer, weights = self._attended(similarity, tokens, whole, need_weights)
        if weights is not None:
            weights = weights.mean(dim=1) if average_attn_weights else weights
            weights = weights if batched else weights.squeeze(0)
        return self.from_heads(answer, batched), weights

    def _limits(self, in_self_attention: bool, mask: MaskLike | None) -> list[Mask]:
        """What the layer itself and the caller say of who may look at whom, in qkv's meaning."""
        counts = in_self_attention or not self.mask_in_self_attention_only
        parts = [
            self.mask if counts else None,
            None if mask is None else as_mask(mask),
            self.position_bias,
        ]
        return [each for each in parts if each is not None]

    def _over_all(
        self,
        masks: TorchMasks,
        limits: list[Mask],
        tokens: Tokens,
        cache: KVCache | PagedCache | None,
    ) -> Mask | None:
        """All masks together, over the keys that were remembered too."""
        n, m = tokens.query.shape[-2], tokens.key.shape[-2] if cache is None else cache.length
        if n == 1:  # to a single query, the last, Causal says nothing; to decode goes without it
            limits = [each for each in limits if not isinstance(each, Causal)]
        return intersection(masks.over((tokens.query.shape[0], self.num_heads), n, m), *limits)

    def _attended(
        self,
        similarity: Similarity | PerHead,
        tokens: Tokens,
        mask: Mask | None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """The answer of each head, (batch, heads, n, head_dim), and its weights if asked for."""
        tokens, mask = self.with_extra_keys(tokens, mask)
        options: dict[str, Any] = {"mask": mask, "dropout": self._dropout_rate}
        if need_weights:
            return attend_per_head(attend_with_weights, similarity, *tokens, **options)  # type: ignore[no-any-return]
        return attend_per_head(pooling.attend, similarity, *tokens, **options), None

    def _of_nested(self, query: Tensor, key: Any, value: Any, limits: list[Mask]) -> Tensor:
        """The answer to nested tensors (batch, ragged, embed_dim), itself one."""
        packed = nested.pack(query, key, value, intersection(*limits))
        self._checked(*packed[:3], None)
        # All sequences are one, of a batch of one.
        tokens = self.to_heads(*(tensor.unsqueeze(0) for tensor in packed[:3]))
        answer, _ = self._attended(self.similarity, tokens, packed.mask)
        return nested.nested_like(self.from_heads(answer, batched=True).squeeze(0), query)

    def _over_ranks(
        self,
        similarity: Similarity | PerHead,
        tokens: Tokens,
        limits: list[Mask],
        cache: KVCache | PagedCache | None,
    ) -> Tensor:
        """The answer over the keys of all ranks; with a cache all ranks have the same queries."""
        layout: Layout = self.layout if cache is None else "replicated"
        attend = partial(cluster.attend, group=self.group, layout=layout)
        options: dict[str, Any] = {"mask": intersection(*limits), "dropout": self._dropout_rate}
        return attend_per_head(attend, similarity, *tokens, **options)  # type: ignore[no-any-return]

    @property
    def _dropout_rate(self) -> float:
        return self.dropout if self.training else 0.0

    def _checked(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        cache: KVCache | PagedCache | None,
    ) -> tuple[Tensor, Tensor]:
        """Key and value; no tokens at all where they are None and the cache holds some."""
        check_query(query, self.embed_dim, self.batch_first)
        if cache is not None and self.has_extra_keys:
            raise InputError("cache cannot be used with add_bias_kv or add_zero_attn")
        if key is None or value is None:
            if key is not value or cache is None or cache.length == 0:
                raise InputError("key and value may both be None only where cache holds some")
            shape = list(query.shape[:-1])
            shape[1 if self.batch_first and query.ndim == 3 else 0] = 0  # the axis of tokens
            return query.new_empty(*shape, self.kdim), query.new_empty(*shape, self.vdim)
        check_key_and_value(query, key, value, (self.kdim, self.vdim), self.batch_first)
        return key, value

    def _check_nested(self, key: Tensor | None, value: Tensor | None, others: bool) -> None:
        if others or key is None or value is None or self.rotary is not None:
            raise InputError(
                "with nested tensors a layer takes query, key, value and mask= only, no rotary"
            )
        if not self.batch_first or self.group is not None:
            raise InputError("with nested tensors a layer must be batch_first, without a group")

    def _check_call(
        self, need_weights: bool, torch_masks: bool, cache: KVCache | PagedCache | None
    ) -> None:
        """Raise InputError where a cache or a group does not support what is asked for."""
        if isinstance(cache, PagedCache) and (need_weights or self._dropout_rate):
            raise InputError(
                "a paged cache supports neither weights nor dropout: need_weights=False"
            )
        if self.group is None:
            return
        if need_weights or torch_masks:
            raise InputError(
                "a layer with a group gives no weights and takes masks as mask= only, over the "
                "whole sequence: need_weights=False, no attn_mask, key_padding_mask or is_causal"
            )
        if self.has_extra_keys:
            raise InputError("a layer with a group cannot have add_bias_kv or add_zero_attn")
        if self.rotary is not None and cache is None:
            raise InputError(
                "rotary counts the positions of one rank: it cannot be used with a group"
            )
        if cache is not None and cache.group is not self.group:
            raise InputError("cache must have the group of its layer: KVCache(capacity, group)")

    def extra_repr(self) -> str:
        parts = [f"embed_dim={self.embed_dim}, num_heads={self.num_heads}"]
        if self.kv_heads != self.num_heads:
            parts.append(f"kv_heads={self.kv_heads}")
        if self.dropout:
            parts.append(f"dropout={self.dropout}")
        if self.batch_first:
            parts.append("batch_first=True")
        if self.mask is not None:
            parts.append(f"mask={self.mask!r}")
        return ", ".join(parts)


def _rotated(tokens: Tokens, rotary: Rotary, past: int) -> Tokens:
    """Queries and keys rotated by their positions; `past` keys came before these."""
    stop = past + tokens.key.shape[-2]
    query = rotary(tokens.query, stop - tokens.query.shape[-2])
    return Tokens(query, rotary(tokens.key, past), tokens.value)


def _remembered(
    tokens: Tokens, similarity: Similarity | PerHead, cache: KVCache | PagedCache
) -> tuple[Similarity | PerHead, Tokens]:
    """The queries over all that the cache holds, once it holds the new keys too."""
    similarity, query, key = prepare(similarity, tokens.query, tokens.key)
    cache.append(key, tokens.value)
    if isinstance(cache, PagedCache):
        return similarity, Tokens(query, key, tokens.value)  # its pages are asked one by one
    return similarity, Tokens(query, cache.key, cache.value)
