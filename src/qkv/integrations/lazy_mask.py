"""Masks of transformers' models that are made only where somebody looks at them.

A model makes one mask for all its layers and hands it to attention. As a tensor it has an entry for
every pair; qkv's attention wants to know only what it says: causal, a window, packed sentences. So
models are given a tensor that is empty until an operation reads it. Those that slice or change
their masks get the real one; the others never make it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from qkv.mask import Allowed, Causal, Documents, Function, Mask, Window, intersection

#: A mask of no more entries is made at once: all layers share it, and to read it costs little.
MOST_MADE = 2**20


class LazyMask(Tensor):
    """A boolean tensor (batch, 1, n, m), True = may attend, that knows what it says.

    `mask` says it over the first `keys` keys; later ones may not be attended to.
    """

    mask: Mask
    keys: int
    _make: Callable[[], Tensor]

    @staticmethod
    def __new__(
        cls,
        mask: Mask,
        keys: int,
        make: Callable[[], Tensor],
        shape: tuple[int, ...],
        device: torch.device,
    ) -> LazyMask:
        made: LazyMask = torch.Tensor._make_wrapper_subclass(
            cls, shape, dtype=torch.bool, device=device
        )
        made.mask, made.keys, made._make = mask, keys, make
        return made

    def made(self) -> Tensor:
        """The mask as a tensor of numbers."""
        return self._make()

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        def real(each: Any) -> Any:
            return each.made() if isinstance(each, LazyMask) else each

        return func(*tree_map(real, args), **tree_map(real, kwargs or {}))

    def __repr__(self, *, tensor_contents: Any = None) -> str:  # type: ignore[override]
        return f"LazyMask({self.mask!r}, {tuple(self.shape)})"


def make_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] | None = None,
    attention_mask: Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    device: torch.device | str = "cpu",
    **options: Any,
) -> Tensor | None:
    """What transformers calls to make a mask; None where everyone may see everyone."""
    from transformers import masking_utils as source

    sdpa_mask: Any = source.sdpa_mask
    function = source.causal_mask_function if mask_function is None else mask_function

    def make(skip: bool = False, skip_all: bool = False) -> Any:  # a tensor, or None if skipped
        # Unlike PyTorch's kernel, attention is not told by its caller that it is causal, so
        # nothing may be left out that a layer would have to say.
        return sdpa_mask(
            batch_size=batch_size,
            q_length=q_length,
            kv_length=kv_length,
            q_offset=q_offset,
            kv_offset=kv_offset,
            mask_function=function,
            attention_mask=attention_mask,
            allow_is_causal_skip=skip,
            allow_is_bidirectional_skip=skip_all,
            device=device,
            **options,
        )

    if torch.compiler.is_compiling():
        return make(skip_all=allow_is_bidirectional_skip)  # type: ignore[no-any-return]
    shape, where = (batch_size, 1, q_length, kv_length), torch.device(device)
    if batch_size * q_length * kv_length > MOST_MADE and _aligned(
        q_offset, q_length, kv_offset, kv_length
    ):
        mask = intersection(
            _mask_of_function(function, kv_length, kv_offset),
            _padding(attention_mask, kv_offset, kv_length),
        )
        return None if mask is None else LazyMask(mask, kv_length, make, shape, where)
    tensor = make(allow_is_causal_skip, allow_is_bidirectional_skip)
    if tensor is None and allow_is_causal_skip and q_length > 1:
        # A cache of fixed size may hold room for more keys than there are yet.
        return LazyMask(Causal(), q_length, make, shape, where)
    return tensor  # type: ignore[no-any-return]


def _padding(attention_mask: Tensor | None, start: int, m: int) -> Mask | None:
    if attention_mask is None:
        return None
    kept = attention_mask[:, start : start + m].bool()
    return None if bool(kept.all()) else Allowed(kept[:, None, None, :])


def _aligned(q_offset: int | Tensor, n: int, kv_offset: int, m: int) -> bool:
    """Whether the last query stands at the last key, as qkv's masks have it."""
    return not isinstance(q_offset, Tensor) and q_offset + n == kv_offset + m


def _mask_of_function(function: Callable[..., Any], m: int, offset: int) -> Mask | None:
    """What a mask function of transformers says; one that is not known is asked in blocks."""
    from transformers import masking_utils as source

    code = getattr(function, "__code__", None)
    within = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    if code is source.causal_mask_function.__code__:
        return Causal()
    if code is source.bidirectional_mask_function.__code__:
        return None
    if code is source.sliding_window_overlay(1).__code__:
        return Window(within[0] - 1, m)
    if code is source.sliding_window_bidirectional_overlay(1).__code__:
        return Window(within[0], within[0])
    if code is source.packed_sequence_mask_function(torch.empty(0)).__code__:
        return Documents.from_ids(within[0])
    if code is source.and_masks().__code__:
        return intersection(*(_mask_of_function(part, m, offset) for part in within[0]))

    def rule(entry: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Any:
        return function(entry, head, query + offset, key + offset)

    return Function(rule)
