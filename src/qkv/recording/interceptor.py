"""What asks for attention inside a torch model, caught where it is asked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from types import FunctionType
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from qkv import pooling
from qkv.mask import Causal, CausalFromStart, Mask, MaskLike, as_mask, intersection
from qkv.nn.heads import PerHead, attend_per_head
from qkv.nn.torch_masks import TorchMasks
from qkv.recording.eager_patterns import EagerPatterns, square_softmax
from qkv.recording.flex import is_flex_attention
from qkv.recording.flex import read as read_flex
from qkv.similarity import ScaledDot, Similarity, SimilarityLike, as_similarity
from qkv.tracing import in_transform
from qkv.with_weights import attend_with_weights


class CallArguments(NamedTuple):
    """One question, as its asker put it."""

    query: Tensor
    key: Tensor
    similarity: Similarity | PerHead
    mask: Mask | None


class Interceptor(TorchFunctionMode):
    """While active in a thread, tells `tell` of every attention that is asked for in it, as a
    question or, where that is not understood, by its weights, and `missed` of what got away.

    It is part of torch's function protocol, so nothing is patched; qkv's own questions take part in
    the same protocol. What is computed is left as it is, except that torch's own layers go without
    the fused shortcut of eval mode, which torch skips where functions are watched.
    """

    def __init__(
        self, tell: Callable[[CallArguments | Tensor], None], missed: Callable[[str], None]
    ) -> None:
        super().__init__()
        self._tell, self._missed = tell, missed
        self._patterns = EagerPatterns()
        self._layer: _TorchLayerCall | None = None

    def __torch_function__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if _nothing_to_record():
            return func(*args, **kwargs)
        if func is F.multi_head_attention_forward:
            return self._torch_layer(*args, **kwargs)
        if is_flex_attention(func):
            asked: CallArguments | None = CallArguments(*read_flex(*args, **kwargs))
        elif func in _READERS:
            asked = _READERS[func](*args, **kwargs)
        elif not self._patterns.concerns(func):
            return func(*args, **kwargs)
        else:
            asked = None
        if asked is None:
            asked = self._scores_of(func, args, kwargs)
        result = func(*args, **kwargs)
        if asked is not None:
            self._tell(self._layer.completed(asked) if self._layer else asked)
        else:
            self._record_weights(func, args, kwargs, result)
        self._patterns.follow(func, args, kwargs, result)
        return result

    def _record_weights(
        self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any
    ) -> None:
        """What is not understood: the weights themselves, or a word that something was missed."""
        weights = self._patterns.weights(func, args, kwargs, result)
        if weights is not None:
            self._tell(weights)
            return
        moved = self._patterns.comes_from_a_product(func, args, kwargs)
        square = square_softmax(func, args, kwargs)
        if moved is not None:
            self._missed(f"a softmax over {moved} whose query and key axes cannot be told apart")
        elif square is not None:
            self._missed(f"a softmax over {square} that is not a product of queries and keys")

    def _scores_of(
        self, func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> CallArguments | None:
        scores = self._patterns.ended(func, args, kwargs)
        if scores is None:
            return None
        return CallArguments(scores.query, scores.key, scores.similarity, scores.mask)

    def _torch_layer(self, *args: Any, **kwargs: Any) -> Any:
        call = _LAYER_SIGNATURE.bind(*args, **kwargs)
        call.apply_defaults()
        outer, self._layer = self._layer, _TorchLayerCall.of(call.arguments)
        try:
            with self:
                return _LAYER_BODY(*args, **kwargs)
        finally:
            self._layer = outer


class _TorchLayerCall(NamedTuple):
    """What torch's multi-head layer was told, where its inner steps no longer say it."""

    heads: int
    mask: Mask | None
    as_told: bool  # whether `mask` is over the keys that are attended to

    @classmethod
    def of(cls, call: Mapping[str, Any]) -> _TorchLayerCall:
        """Of a call of torch's function for the layer, its arguments by name."""
        query, heads, attn_mask = call["query"], call["num_heads"], call["attn_mask"]
        if call["bias_k"] is not None or call["add_zero_attn"]:
            return cls(heads, None, as_told=False)
        # Not the mask the layer makes of both, which is as large as all heads' weights.
        masks = TorchMasks(attn_mask, call["key_padding_mask"], call["is_causal"])
        if attn_mask is None and masks.key_padding_mask is None:
            return cls(heads, None, as_told=True)
        batch = 1 if query.ndim == 2 else query.shape[1]
        mask = masks.over((batch, heads), query.shape[0], call["key"].shape[0])
        return cls(heads, mask, as_told=True)

    def completed(self, asked: CallArguments) -> CallArguments:
        """(batch · heads, n, d) as (batch, heads, n, d), under the mask that was given."""
        query, key = (
            x.unflatten(0, (-1, self.heads)) if x.ndim == 3 else x for x in (asked.query, asked.key)
        )
        mask = self.mask if self.as_told else _by_head(asked.mask, self.heads)
        return asked._replace(query=query, key=key, mask=mask)


def _by_head(mask: Mask | None, heads: int) -> Mask | None:
    tensors = [] if mask is None else mask.tensors()
    split = [
        as_mask(x.unflatten(0, (-1, heads)) if x.ndim == 3 and len(x) > 1 else x) for x in tensors
    ]
    return intersection(*split)


def _nothing_to_record() -> bool:
    """Inside function transforms there are no numbers to keep; in a backward pass, attention is
    only computed again."""
    return in_transform() or torch._C._current_graph_task_id() != -1


def _read_sdpa(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> CallArguments:
    mask = None if attn_mask is None else as_mask(attn_mask.detach())
    if is_causal:
        square = query.shape[-2] == key.shape[-2]
        mask = intersection(mask, Causal() if square else CausalFromStart())
    return CallArguments(query, key, ScaledDot(scale), mask)


def _read_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    similarity: SimilarityLike = None,
    mask: MaskLike | None = None,
    **options: Any,
) -> CallArguments:
    chosen = None if mask is None else as_mask(mask)
    return CallArguments(query, key, as_similarity(similarity), chosen)


def _read_attend_per_head(
    attend: Callable[..., Any],
    similarity: Similarity | PerHead,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | None,
    dropout: float,
) -> CallArguments:
    return CallArguments(query, key, similarity, mask)


_READERS: dict[Any, Callable[..., CallArguments]] = {
    F.scaled_dot_product_attention: _read_sdpa,
    pooling.attend: _read_attend,
    attend_with_weights: _read_attend,
    attend_per_head: _read_attend_per_head,
}

_LAYER_SIGNATURE = inspect.signature(F.multi_head_attention_forward)

# torch's layer hands itself over as a whole to whoever watches functions. Its body under globals in
# which nobody watches runs on, and lets its steps be seen.
_LAYER_BODY = FunctionType(
    F.multi_head_attention_forward.__code__,
    {**vars(F), "has_torch_function": lambda tensors: False},
    argdefs=F.multi_head_attention_forward.__defaults__,
)
