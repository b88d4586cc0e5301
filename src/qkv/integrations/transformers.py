"""qkv as an attention implementation of Hugging Face transformers.

from qkv.integrations.transformers import register

register()
model = AutoModel.from_pretrained(…, attn_implementation="qkv")

register("qkv-local", mask=qkv.mask.Window(128, 128))
model.set_attn_implementation("qkv-local")
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from qkv import pooling
from qkv.mask import Bias, Causal, Mask, MaskLike, as_mask
from qkv.nn.torch_masks import both
from qkv.nn.weighed import attend_weighed
from qkv.similarity import ScaledDot, SimilarityLike, as_similarity


def register(
    name: str = "qkv", *, similarity: SimilarityLike = None, mask: MaskLike | None = None
) -> None:
    """Make ``attn_implementation=name`` known to transformers.

    Args:
        name: any name that transformers does not use itself.
        similarity: what heads compare by; None is the scaled dot product, with the model's scale.
            All layers and heads share it.
        mask: who may look at whom, beside the model's own mask.
    """
    try:
        from transformers import AttentionInterface, AttentionMaskInterface
        from transformers.masking_utils import sdpa_mask
    except ImportError as error:
        raise ImportError(
            "qkv.integrations.transformers needs transformers: pip install transformers"
        ) from error
    chosen = None if similarity is None else as_similarity(similarity)
    own_mask = None if mask is None else as_mask(mask)

    def attention(
        module: nn.Module,
        query: Tensor,  # (batch, heads, n, d)
        key: Tensor,  # (batch, kv_heads, m, d)
        value: Tensor,  # (batch, kv_heads, m, d)
        attention_mask: Tensor | None,
        scaling: float | None = None,
        dropout: float = 0.0,
        is_causal: bool | None = None,
        position_bias: Tensor | None = None,
        **options: Any,
    ) -> tuple[Tensor, Tensor | None]:
        for unknown in ("softcap", "s_aux"):
            if options.get(unknown) is not None:
                raise ValueError(f"attn_implementation={name!r} knows no {unknown}")
        groups = query.shape[1] // key.shape[1]
        if groups > 1:
            key, value = (x.repeat_interleave(groups, dim=1) for x in (key, value))
        causal = getattr(module, "is_causal", False) if is_causal is None else is_causal
        asked: dict[str, Any] = {
            "similarity": ScaledDot(scaling) if chosen is None else chosen,
            "mask": both(_model_mask(attention_mask, bool(causal), position_bias), own_mask),
            "dropout": dropout,
        }
        weights = None
        if options.get("output_attentions"):
            answer, weights = attend_weighed(query, key, value, **asked)
        else:
            answer = pooling.attend(query, key, value, **asked)
        return answer.transpose(1, 2).contiguous(), weights  # (batch, n, heads, d)

    AttentionInterface.register(name, attention)
    # Boolean, True = may attend, and left out where it would say nothing: qkv's own meaning.
    AttentionMaskInterface.register(name, sdpa_mask)


def _model_mask(mask: Tensor | None, causal: bool, position_bias: Tensor | None) -> Mask | None:
    # A model gives no mask where it is plainly causal, or where everyone may see everyone.
    own = as_mask(mask) if mask is not None else Causal() if causal else None
    return both(own, None if position_bias is None else Bias(position_bias))
