"""qkv as an attention implementation of Hugging Face transformers.

from qkv.integrations.transformers import register

register()
model = AutoModel.from_pretrained(…, attn_implementation="qkv")

register("qkv-local", mask=qkv.mask.Window(128, 128))
model.set_attn_implementation("qkv-local")
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor, nn

from qkv import pooling
from qkv.integrations.coverage import FirstForward, check, refusal_of_class, refusal_of_model
from qkv.integrations.lazy_mask import LazyMask, make_mask
from qkv.mask import Allowed, Bias, Causal, Mask, MaskLike, as_mask, intersection
from qkv.similarity import ScaledDot, Similarity, SimilarityLike, as_similarity
from qkv.with_weights import attend_with_weights

#: The names that were registered here.
_NAMES: set[str] = set()


def register(
    name: str = "qkv", *, similarity: SimilarityLike = None, mask: MaskLike | None = None
) -> None:
    """Make ``attn_implementation=name`` known to transformers.

    A model whose layers compute attention themselves (Bloom, DeBERTa, Longformer, …) is refused
    with the reason, when it is built or, where that shows only then, at its first forward.

    Args:
        name: any name that transformers does not use itself.
        similarity: what heads compare by; None is the scaled dot product, with the model's scale.
            All layers and heads share it.
        mask: who may look at whom, beside the model's own mask.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
    except ImportError as error:
        raise ImportError(
            "qkv.integrations.transformers needs transformers: pip install transformers"
        ) from error
    if isinstance(similarity, type):
        raise TypeError(
            f"similarity must be an instance, made for the size of a head; got the class "
            f"{similarity.__name__}"
        )
    chosen = None if similarity is None else as_similarity(similarity)
    attention = Attention(name, chosen, None if mask is None else as_mask(mask))
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, make_mask)
    _NAMES.add(name)
    _ask_before_models_change()


class Attention:
    """What transformers calls in place of a model's own attention."""

    def __init__(self, name: str, similarity: Similarity | None, mask: Mask | None) -> None:
        self.name, self.similarity, self.mask = name, similarity, mask

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,  # (batch, heads, n, d)
        key: Tensor,  # (batch, kv_heads, m, d)
        value: Tensor,  # (batch, kv_heads, m, d)
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        is_causal: bool | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        for look in FirstForward.under_way:
            look.note(module)
        self._check(options)
        n = query.shape[2]
        mask, stop = self._model_mask(module, attention_mask, is_causal, n, key.shape[2])
        key, value = key[:, :, :stop], value[:, :, :stop]
        bias = options.get("position_bias")
        asked: dict[str, Any] = {
            "similarity": self._similarity(scaling, options.get("softcap")),
            "mask": intersection(
                mask,
                None if bias is None else Bias(bias[..., :stop]),
                _selected(options.get("indices"), stop),
                self.mask,
            ),
        }
        if key.shape[1] != query.shape[1]:
            asked["enable_gqa"] = True
        sink = options.get("s_aux")
        wants_weights = options.get("output_attentions") or _attentions_are_collected()
        weights = None
        if wants_weights:
            answer, weights = attend_with_weights(query, key, value, **asked, dropout=dropout)
        else:
            answer = pooling.attend(query, key, value, **asked, dropout=dropout)
        if sink is not None:
            # A key that every query sees, whose value is 0: the others keep their share.
            total = pooling.attend_partial(query, key, value, **asked).log_total
            share = torch.sigmoid(total - sink.reshape(-1, 1)).unsqueeze(-1).to(answer.dtype)
            answer = answer * share
            weights = None if weights is None else weights * share
        return answer.transpose(1, 2).contiguous(), weights  # (batch, n, heads, d)

    def _model_mask(
        self, module: nn.Module, mask: Tensor | None, causal: bool | None, n: int, m: int
    ) -> tuple[Mask | None, int]:
        """Who may look at whom, and at how many keys, as the model has it."""
        if isinstance(mask, LazyMask):
            return mask.mask, mask.keys
        if mask is not None:
            return as_mask(mask), m
        causal = getattr(module, "is_causal", False) if causal is None else causal
        # More keys than queries are a cache of fixed size that is filled from its start.
        return (Causal(), n) if causal and n > 1 else (None, m)

    def _similarity(self, scaling: float | None, cap: float | None) -> Similarity:
        if self.similarity is not None:
            return self.similarity
        similarity = ScaledDot(scaling)
        return similarity if cap is None else similarity.soft_cap(cap)

    def _check(self, options: dict[str, Any]) -> None:
        for name, option in options.items():
            if isinstance(option, Tensor) and name not in _KNOWN_TENSORS:
                raise ValueError(f"attn_implementation={self.name!r} does not support {name}")
        if self.similarity is not None and options.get("softcap") is not None:
            raise ValueError(
                f"attn_implementation={self.name!r} has its own similarity, which cannot be "
                "combined with softcap"
            )


#: Tensors that models hand on to attention and that change its answer in ways we know, or not at
#: all: positions and caches have been applied, and masks made, before.
_KNOWN_TENSORS = {
    "position_bias", "s_aux", "indices", "position_ids", "cache_position", "input_ids",
    "inputs_embeds", "labels", "cu_seq_lens_q", "cu_seq_lens_k",
}  # fmt: skip


def _selected(indices: Tensor | None, m: int) -> Mask | None:
    """The keys that a model chose for each query, (batch, n, k)."""
    if indices is None:
        return None
    allowed = indices.new_zeros((*indices.shape[:-1], m), dtype=torch.bool)
    return Allowed(allowed.scatter(-1, indices.long(), True).unsqueeze(1))


def _attentions_are_collected() -> bool:
    """Whether a model gathers the weights of its layers without telling them."""
    try:
        from transformers.utils.output_capturing import _active_collector
    except ImportError:  # an older transformers, whose models tell their layers
        return False
    collector: Any = _active_collector
    collected = collector.get()
    return collected is not None and any(key.endswith("attentions") for key in collected)


@functools.cache
def _ask_before_models_change() -> None:
    """Let transformers ask us, too, whether a model can have one of our names."""
    from transformers import PreTrainedModel

    kind: Any = PreTrainedModel
    supported, set_implementation = (
        kind.get_correct_attn_implementation,
        kind.set_attn_implementation,
    )

    @functools.wraps(supported)
    def get_correct(
        model: nn.Module, requested_attention: str | None, is_init_check: bool = False
    ) -> Any:
        implementation = supported(model, requested_attention, is_init_check)
        if implementation in _NAMES:
            check(model, implementation, refusal_of_class(type(model)))
            if not is_init_check:
                check(model, implementation, refusal_of_model(model))
            FirstForward(model, implementation)
        return implementation

    @functools.wraps(set_implementation)
    def set_correct(
        model: nn.Module, attn_implementation: str | dict[str, Any], *args: Any, **kwargs: Any
    ) -> Any:
        if isinstance(attn_implementation, str) and attn_implementation in _NAMES:
            # Left to itself, transformers writes a line to its log and goes on with what was.
            check(model, attn_implementation, refusal_of_class(type(model)))
        return set_implementation(model, attn_implementation, *args, **kwargs)

    kind.get_correct_attn_implementation = get_correct
    kind.set_attn_implementation = set_correct
