"""Multi-head attention: several heads ask side by side, each in its own projection."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from qkv import cluster, nested, pooling
from qkv.bias import BiasLike, as_bias
from qkv.cluster.sharding import Layout, check_layout
from qkv.grouped import for_every_head
from qkv.mask import Causal, Mask, MaskLike, Tile, as_mask, intersection
from qkv.nn.cache import KVCache, prepare
from qkv.nn.errors import InputError, check_axes, check_mask_axes, check_sizes
from qkv.nn.heads import HeadSimilarity, PerHead, attend_per_head, for_heads, reset_parameters
from qkv.nn.paged import PagedCache, attend_pages
from qkv.nn.positions import Rotary
from qkv.nn.torch_masks import append_visible_keys, from_torch
from qkv.similarity import ScaledDot, Similarity
from qkv.with_weights import attend_with_weights


class MultiheadAttention(nn.Module):
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
        rotary: turns queries and keys by their positions. The last query stands at the last key.
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
        super().__init__()
        self.group, self.layout = group, check_layout(layout)
        self.embed_dim, self.num_heads, self.dropout = embed_dim, num_heads, dropout
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.kv_heads = num_heads if kv_heads is None else kv_heads
        self.batch_first, self.add_zero_attn = batch_first, add_zero_attn
        check_sizes(embed_dim, num_heads, self.kv_heads, dropout)
        self.head_dim = embed_dim // num_heads

        def parameter(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.empty(*shape, device=device, dtype=dtype))

        kv_dim = self.kv_heads * self.head_dim
        self._sizes = [embed_dim, kv_dim, kv_dim]
        packed = self.kdim == self.vdim == embed_dim
        self.in_proj_weight = parameter(sum(self._sizes), embed_dim) if packed else None
        self.q_proj_weight = None if packed else parameter(embed_dim, embed_dim)
        self.k_proj_weight = None if packed else parameter(kv_dim, self.kdim)
        self.v_proj_weight = None if packed else parameter(kv_dim, self.vdim)
        self.in_proj_bias = parameter(sum(self._sizes)) if bias else None
        self.out_proj = nn.Linear(embed_dim, embed_dim, bias=bias, device=device, dtype=dtype)
        self.bias_k = parameter(1, 1, kv_dim) if add_bias_kv else None
        self.bias_v = parameter(1, 1, kv_dim) if add_bias_kv else None
        self._draw_projections()
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
        self.out_proj.reset_parameters()
        self._draw_projections()
        reset_parameters(self.similarity)

    def _draw_projections(self) -> None:
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
        if query.is_nested and query.ndim == 3:
            torch_masks = key_padding_mask is not None or attn_mask is not None or is_causal
            return self._of_nested(query, key, value, mask, torch_masks or cache is not None), None
        batched = query.ndim == 3
        own_mask = None if self.mask_in_self_attention_only and query is not key else self.mask
        key, value = self._checked(query, key, value, cache)
        if self.group is not None:
            torch_masks = key_padding_mask is not None or attn_mask is not None or is_causal
            self._check_group(need_weights or torch_masks, cache)
        check_mask_axes(query, key_padding_mask, attn_mask)
        q, k, v = self._heads(query, key, value)  # (batch, heads or kv_heads, n or m, head_dim)
        if self.rotary is not None:
            past = 0 if cache is None else cache.length
            q = self.rotary(q, past + k.shape[-2] - q.shape[-2])
            k = self.rotary(k, past)
        similarity = self.similarity
        if cache is not None:
            similarity, q, k = prepare(similarity, q, k)
            cache.append(k, v)
        if isinstance(cache, KVCache):
            k, v = cache.key, cache.value
        if self.group is not None:
            answer = self._over_ranks(similarity, (q, k, v), (own_mask, mask), cache)
            return self._combined(answer, batched), None
        batch, n = (q.shape[0], self.num_heads), q.shape[-2]
        m = k.shape[-2] if cache is None else cache.length
        if key_padding_mask is not None and not batched:
            key_padding_mask = key_padding_mask.unsqueeze(0)
        whole = intersection(
            from_torch(attn_mask, key_padding_mask, is_causal, batch, n, m),
            # To a single query, the last, Causal says nothing; to decode goes without it.
            None if n == 1 and isinstance(own_mask, Causal) else own_mask,
            None if mask is None else as_mask(mask),
            self.position_bias,
        )
        dropout = self.dropout if self.training else 0.0
        if isinstance(cache, PagedCache):
            if need_weights or dropout:
                raise InputError(
                    "a paged cache knows no weights and no dropout: need_weights=False"
                )
            return self._combined(attend_pages(cache, similarity, q, whole), batched), None
        k, v, whole = self._with_extra_keys(k, v, whole, Tile(0, n, n, m, batch, q.device))
        if not need_weights:
            answer = attend_per_head(
                pooling.attend, similarity, q, k, v, mask=whole, dropout=dropout
            )
            return self._combined(answer, batched), None
        answer, weights = attend_per_head(
            attend_with_weights, similarity, q, k, v, mask=whole, dropout=dropout
        )
        if average_attn_weights:
            weights = weights.mean(dim=1)
        return self._combined(answer, batched), weights if batched else weights.squeeze(0)

    def _of_nested(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        mask: MaskLike | None,
        others: bool,
    ) -> Tensor:
        """The answer to nested tensors (batch, ragged, embed_dim), itself one."""
        if others or key is None or value is None or self.rotary is not None:
            raise InputError(
                "of nested tensors a layer takes query, key, value and mask= only, without rotary"
            )
        if not self.batch_first or self.group is not None:
            raise InputError("of nested tensors a layer must be batch_first, without a group")
        own_mask = None if self.mask_in_self_attention_only and query is not key else self.mask
        whole = intersection(own_mask, None if mask is None else as_mask(mask), self.position_bias)
        packed = nested.pack(query, key, value, whole)
        self._checked(*packed[:3], None)
        # All sequences are one, of a batch of one.
        q, k, v = self._heads(*(x.unsqueeze(0) for x in packed[:3]))
        tile = Tile(0, q.shape[-2], q.shape[-2], k.shape[-2], (1, self.num_heads), q.device)
        k, v, limits = self._with_extra_keys(k, v, packed.mask, tile)
        dropout = self.dropout if self.training else 0.0
        answer = attend_per_head(
            pooling.attend, self.similarity, q, k, v, mask=limits, dropout=dropout
        )
        return nested.nested_like(self._combined(answer, batched=True).squeeze(0), query)

    def _over_ranks(
        self,
        similarity: Similarity | PerHead,
        tokens: tuple[Tensor, Tensor, Tensor],
        masks: tuple[Mask | None, MaskLike | None],
        cache: KVCache | PagedCache | None,
    ) -> Tensor:
        """The answer over the keys of all ranks; with a cache all ranks have the same queries."""
        query, key, value = tokens
        layout: Layout = self.layout if cache is None else "replicated"
        attend = partial(cluster.attend, group=self.group, layout=layout)
        own, given = masks
        whole = intersection(own, None if given is None else as_mask(given), self.position_bias)
        key, value = (for_every_head(x, self.num_heads) for x in (key, value))
        dropout = self.dropout if self.training else 0.0
        answer: Tensor = attend_per_head(
            attend, similarity, query, key, value, mask=whole, dropout=dropout
        )
        return answer

    def _check_group(self, torch_only: bool, cache: KVCache | PagedCache | None) -> None:
        if torch_only:
            raise InputError(
                "a layer with a group gives no weights and takes masks as mask= only, over the "
                "whole sequence: need_weights=False, no attn_mask, key_padding_mask or is_causal"
            )
        if self.bias_k is not None or self.add_zero_attn:
            raise InputError("a layer with a group cannot have add_bias_kv or add_zero_attn")
        if self.rotary is not None and cache is None:
            raise InputError("rotary counts the positions of one rank: a group cannot have it")
        if cache is not None and cache.group is not self.group:
            raise InputError("cache must have the group of its layer: KVCache(capacity, group)")

    @property
    def _batch_axis(self) -> int:
        return 0 if self.batch_first else 1

    def _heads(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        projected = self._projected(query, key, value)
        heads = (self.num_heads, self.kv_heads, self.kv_heads)
        return tuple(map(self._split, projected, heads))

    def _projected(self, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        bias: Tensor | None = self.in_proj_bias
        if bias is not None and bias.dtype != self.out_proj.weight.dtype:
            bias = bias.to(self.out_proj.weight.dtype)  # as torch's layer takes it
        if self.in_proj_weight is not None and query is key and key is value:
            packed = F.linear(query, self.in_proj_weight, bias)
            return tuple(packed.split(self._sizes, dim=-1))
        if self.in_proj_weight is not None:
            weights: Any = self.in_proj_weight.split(self._sizes)
        else:
            weights = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        biases: Any = (None, None, None)
        if bias is not None:
            biases = bias.split(self._sizes)
        return tuple(map(F.linear, (query, key, value), weights, biases))

    def _split(self, x: Tensor, heads: int) -> Tensor:
        if x.ndim == 2:
            x = x.unsqueeze(self._batch_axis)
        x = x.unflatten(-1, (heads, self.head_dim))  # (batch, n, heads, head_dim), or n first
        return x.permute(0, 2, 1, 3) if self.batch_first else x.permute(1, 2, 0, 3)

    def _combined(self, x: Tensor, batched: bool) -> Tensor:
        x = x.permute(0, 2, 1, 3) if self.batch_first else x.permute(2, 0, 1, 3)
        x = x.flatten(-2)  # (batch, n, embed_dim), or n first
        answer: Tensor = self.out_proj(x if batched else x.squeeze(self._batch_axis))
        return answer

    def _with_extra_keys(
        self, k: Tensor, v: Tensor, mask: Mask | None, tile: Tile
    ) -> tuple[Tensor, Tensor, Mask | None]:
        """Beside the keys given, a learned one and one of zeros, which every query may see."""
        extra_k, extra_v = [], []
        if self.bias_k is not None and self.bias_v is not None:
            extra_k.append(self._split(self.bias_k, self.kv_heads))
            extra_v.append(self._split(self.bias_v, self.kv_heads))
        if self.add_zero_attn:
            extra_k.append(k.new_zeros(1, 1, 1, k.shape[-1]))
            extra_v.append(v.new_zeros(1, 1, 1, v.shape[-1]))
        if not extra_k:
            return k, v, mask
        k = torch.cat([k, *(x.to(k.dtype).expand(*k.shape[:2], 1, -1) for x in extra_k)], dim=2)
        v = torch.cat([v, *(x.to(v.dtype).expand(*v.shape[:2], 1, -1) for x in extra_v)], dim=2)
        return k, v, mask and append_visible_keys(mask, len(extra_k), tile)

    def _checked(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        cache: KVCache | PagedCache | None,
    ) -> tuple[Tensor, Tensor]:
        """Key and value; no tokens at all where they are None and the cache holds some."""
        if query.ndim not in (2, 3):
            raise InputError(
                f"query should be unbatched 2D or batched 3D tensor but received {query.ndim}-D "
                f"query tensor; expected (…, {self.embed_dim})"
            )
        if query.shape[-1] != self.embed_dim:
            order = "(batch, n, " if self.batch_first else "(n, batch, "
            raise InputError(
                f"query must have shape {order}{self.embed_dim}) or (n, {self.embed_dim}); "
                f"got {tuple(query.shape)}"
            )
        if cache is not None and (self.bias_k is not None or self.add_zero_attn):
            raise InputError("cache cannot be used with add_bias_kv or add_zero_attn")
        check_axes(query, key, value)
        tokens = 1 if self.batch_first and query.ndim == 3 else 0  # the axis of tokens
        shape = list(query.shape)
        if key is None or value is None:
            if key is not value or cache is None or cache.length == 0:
                raise InputError("key and value may both be None only where cache holds some")
            shape[tokens] = 0
            return query.new_empty(*shape[:-1], self.kdim), query.new_empty(*shape[:-1], self.vdim)
        shape[tokens] = key.shape[tokens]
        for name, x, dim in (("key", key, self.kdim), ("value", value, self.vdim)):
            if tuple(x.shape) != (*shape[:-1], dim):
                raise InputError(
                    f"{name} must have shape {(*shape[:-1], dim)} to match query "
                    f"{tuple(query.shape)}; got {tuple(x.shape)}"
                )
        return key, value

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
