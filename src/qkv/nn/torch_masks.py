"""torch's dialect of masks, where True means may *not* attend, put into qkv's."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from qkv.mask import Allowed, Bias, Causal, Mask, Tile, intersection
from qkv.nn.errors import InputError, MaskTypeError


class TorchMasks(NamedTuple):
    """What a call of a layer says of masks in torch's dialect."""

    attn_mask: Tensor | None
    key_padding_mask: Tensor | None
    is_causal: bool

    @property
    def given(self) -> bool:
        """Whether it says anything."""
        return self.attn_mask is not None or self.key_padding_mask is not None or self.is_causal

    def over(self, batch: tuple[int, int], n: int, m: int) -> Mask | None:
        """What they mean together over (batch, heads, n, m)."""
        padding = self.key_padding_mask
        if padding is not None and padding.ndim == 1:  # of a call without a batch
            padding = padding.unsqueeze(0)
        return from_torch(self.attn_mask, padding, self.is_causal, batch, n, m)


def from_torch(
    attn_mask: Tensor | None,
    key_padding_mask: Tensor | None,
    is_causal: bool,
    batch: tuple[int, int],
    n: int,
    m: int,
) -> Mask | None:
    """The mask of (batch, heads, n, m) that torch's arguments mean together."""
    if is_causal and attn_mask is None:
        raise InputError("is_causal=True says of attn_mask that it is causal; got attn_mask=None")
    parts: list[Mask] = []
    if is_causal and n == m:
        parts.append(Causal())
    elif attn_mask is not None:
        parts.append(_of_pairs(attn_mask, batch, n, m))
    if key_padding_mask is not None:
        parts.append(_of_keys(key_padding_mask, batch[0], m))
    return intersection(*parts)


def append_visible_keys(mask: Mask, extra: int, tile: Tile) -> Mask:
    """`mask` over the keys of `tile`, and beside them `extra` keys that every query may see."""
    if mask.needs_scores or mask.adds_by_position:
        raise ValueError(f"mask {mask!r} cannot be used with add_bias_kv or add_zero_attn")
    allowed = mask.allowed(tile)
    allowed = F.pad(allowed.expand(*allowed.shape[:-1], tile.m), (0, extra), value=True)
    bias = mask.bias()
    if bias is None:
        return Allowed(allowed)
    bias = F.pad(bias.expand(*bias.shape[:-1], tile.m), (0, extra))
    return Allowed(allowed) & Bias(bias)


def _of_pairs(attn_mask: Tensor, batch: tuple[int, int], n: int, m: int) -> Mask:
    size, heads = batch
    if attn_mask.ndim == 3 and tuple(attn_mask.shape) == (size * heads, n, m):
        attn_mask = attn_mask.unflatten(0, batch)  # (batch, heads, n, m)
    elif tuple(attn_mask.shape) != (n, m):
        raise InputError(
            f"Expected `attn_mask` shape to be {(size * heads, n, m)} or {(n, m)}; "
            f"got {tuple(attn_mask.shape)}"
        )
    return _mask("attn_mask", attn_mask)


def _of_keys(key_padding_mask: Tensor, size: int, m: int) -> Mask:
    if tuple(key_padding_mask.shape) != (size, m):
        raise InputError(
            f"key_padding_mask must have shape {(size, m)}; got {tuple(key_padding_mask.shape)}"
        )
    return _mask("key_padding_mask", key_padding_mask[:, None, None, :])  # (batch, 1, 1, m)


def _mask(name: str, tensor: Tensor) -> Mask:
    if tensor.dtype == torch.bool:
        return Allowed(~tensor)
    if tensor.is_floating_point():
        return Bias(tensor)
    raise MaskTypeError(
        f"{name} must be boolean (True = may not attend) or floating (added to the scores); "
        f"got {tensor.dtype}"
    )
