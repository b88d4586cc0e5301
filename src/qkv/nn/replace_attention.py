"""Put qkv's layers into a model that was built with torch's."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import TypeVar

from torch import nn

from qkv.mask import MaskLike, as_mask
from qkv.nn.heads import HeadSimilarity
from qkv.nn.multihead import MultiheadAttention

ModelT = TypeVar("ModelT", bound=nn.Module)

_PARAMETERS = (
    "in_proj_weight",
    "q_proj_weight",
    "k_proj_weight",
    "v_proj_weight",
    "in_proj_bias",
    "bias_k",
    "bias_v",
)


def swap(
    model: ModelT,
    *,
    similarity: HeadSimilarity = None,
    mask: MaskLike | Mapping[str, MaskLike] | None = None,
) -> ModelT:
    """Replace every torch.nn.MultiheadAttention in `model`, in place, keeping its weights.

    The new layers hold the very parameters of the old, so an optimiser made before goes on
    working; only what `similarity` learns is new. `similarity` is that of
    :class:`qkv.nn.MultiheadAttention`; a class fits heads of any size.

    >>> import torch, qkv.nn
    >>> model = torch.nn.TransformerEncoderLayer(64, 8, batch_first=True)
    >>> type(qkv.nn.swap(model, mask=qkv.mask.Window(16, 16)).self_attn)
    <class 'qkv.nn.multihead.MultiheadAttention'>

    Args:
        mask: who may look at whom. Positions of one sequence mean nothing in another, so it counts
            where a sequence looks at itself, query and key being one tensor;
            :class:`~qkv.mask.TopK`, which goes by scores, counts everywhere. A mapping from
            patterns of module paths, ``{"*.multihead_attn": …}``, names layers, and counts in
            all their calls.
    """
    if isinstance(model, nn.MultiheadAttention):
        raise TypeError(
            "model must hold torch.nn.MultiheadAttention layers; it is one itself, and cannot be "
            "replaced in place: use qkv.nn.MultiheadAttention and load_state_dict"
        )
    _check_names(model, mask)
    swapped: dict[nn.MultiheadAttention, MultiheadAttention] = {}  # one held twice stays one
    for path, parent in list(model.named_modules()):
        for name, child in parent._modules.items():
            if type(child) is nn.MultiheadAttention:
                if child not in swapped:
                    layer_mask = _mask_of(f"{path}.{name}" if path else name, mask)
                    swapped[child] = _swapped(child, similarity, layer_mask)
                    swapped[child].mask_in_self_attention_only = (
                        layer_mask is mask and _by_position(layer_mask)
                    )
                parent._modules[name] = swapped[child]
        if isinstance(parent, nn.TransformerEncoder):
            # Else, in eval mode, it packs padded batches into a tensor only its own kernels read.
            parent.use_nested_tensor = False
    return model


def _mask_of(path: str, mask: MaskLike | Mapping[str, MaskLike] | None) -> MaskLike | None:
    if not isinstance(mask, Mapping):
        return mask
    return next(
        (layer_mask for pattern, layer_mask in mask.items() if fnmatchcase(path, pattern)), None
    )


def _by_position(mask: MaskLike | None) -> bool:
    if mask is None:
        return False
    best = as_mask(mask).as_topk()
    return best is None or best[1] is not None


def _check_names(model: nn.Module, mask: MaskLike | Mapping[str, MaskLike] | None) -> None:
    layers = [
        path
        for path, module in model.named_modules(remove_duplicate=False)
        if type(module) is nn.MultiheadAttention
    ]
    for pattern in mask if isinstance(mask, Mapping) else ():
        if not any(fnmatchcase(path, pattern) for path in layers):
            raise ValueError(
                f"mask names {pattern!r}; torch.nn.MultiheadAttention layers are "
                f"{', '.join(layers) or 'none'}"
            )


def _swapped(
    old: nn.MultiheadAttention, similarity: HeadSimilarity, mask: MaskLike | None
) -> MultiheadAttention:
    new = MultiheadAttention(
        old.embed_dim,
        old.num_heads,
        old.dropout,
        bias=old.in_proj_bias is not None,
        add_bias_kv=old.bias_k is not None,
        add_zero_attn=old.add_zero_attn,
        kdim=old.kdim,
        vdim=old.vdim,
        batch_first=old.batch_first,
        device=old.out_proj.weight.device,
        dtype=old.out_proj.weight.dtype,
        similarity=similarity,
        mask=mask,
    )
    for name in _PARAMETERS:
        setattr(new, name, getattr(old, name))
    new.out_proj.weight, new.out_proj.bias = old.out_proj.weight, old.out_proj.bias
    return new.train(old.training)
