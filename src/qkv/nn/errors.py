"""Mistakes that code written for torch's layers catches by the types that torch raises."""

from __future__ import annotations

from torch import Tensor


class InputError(ValueError, AssertionError, RuntimeError):
    """A size or shape that does not fit; torch raises any of the three."""


class MaskTypeError(TypeError, AssertionError):
    """A mask of a type that is none."""


def check_sizes(embed_dim: int, num_heads: int, kv_heads: int, dropout: float) -> None:
    """Raise InputError unless a layer can have these sizes."""
    if embed_dim < 1 or num_heads < 1 or embed_dim % num_heads:
        raise InputError(
            f"embed_dim must be a positive multiple of num_heads; "
            f"got embed_dim={embed_dim} and num_heads={num_heads}"
        )
    if kv_heads < 1 or num_heads % kv_heads:
        raise InputError(f"kv_heads must divide num_heads={num_heads}; got {kv_heads}")
    if not 0.0 <= dropout < 1.0:
        raise InputError(f"dropout must be at least 0 and below 1; got {dropout}")


def check_query(query: Tensor, embed_dim: int, batch_first: bool) -> None:
    """Raise InputError unless the query is of a size that a layer takes."""
    if query.ndim not in (2, 3):
        raise InputError(
            f"query should be unbatched 2D or batched 3D tensor but received {query.ndim}-D "
            f"query tensor; expected (…, {embed_dim})"
        )
    if query.shape[-1] != embed_dim:
        order = "(batch, n, " if batch_first else "(n, batch, "
        raise InputError(
            f"query must have shape {order}{embed_dim}) or (n, {embed_dim}); "
            f"got {tuple(query.shape)}"
        )


def check_key_and_value(
    query: Tensor, key: Tensor, value: Tensor, sizes: tuple[int, int], batch_first: bool
) -> None:
    """Raise InputError unless key and value are of these sizes, and batched as the query is."""
    if not query.ndim == key.ndim == value.ndim:
        raise InputError(
            f"for {_batched(query)} `query`, expected `key` and `value` to be {query.ndim}-D but "
            f"found {key.ndim}-D and {value.ndim}-D tensors respectively"
        )
    tokens = 1 if batch_first and query.ndim == 3 else 0  # the axis of tokens
    shape = list(query.shape[:-1])
    shape[tokens] = key.shape[tokens]
    for name, tensor, size in (("key", key, sizes[0]), ("value", value, sizes[1])):
        if tuple(tensor.shape) != (*shape, size):
            raise InputError(
                f"{name} must have shape {(*shape, size)} to match query "
                f"{tuple(query.shape)}; got {tuple(tensor.shape)}"
            )


def check_mask_axes(
    query: Tensor, key_padding_mask: Tensor | None, attn_mask: Tensor | None
) -> None:
    """Raise InputError unless the masks have as many axes as those of `query` ask for."""
    wanted = query.ndim - 1
    if key_padding_mask is not None and key_padding_mask.ndim != wanted:
        raise InputError(
            f"for {_batched(query)} `query`, expected `key_padding_mask` to be `None` or "
            f"{wanted}-D but found {key_padding_mask.ndim}-D tensor instead"
        )
    if attn_mask is not None and attn_mask.ndim not in (2, 3):
        raise InputError(
            f"for {_batched(query)} `query`, expected `attn_mask` to be `None`, 2-D or 3-D but "
            f"found {attn_mask.ndim}-D tensor instead"
        )


def _batched(query: Tensor) -> str:
    return "batched (3-D)" if query.ndim == 3 else "unbatched (2-D)"
