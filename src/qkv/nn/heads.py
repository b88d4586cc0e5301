"""How the heads of a layer compare: all alike, or each with a similarity of its own."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.overrides import handle_torch_function, has_torch_function_variadic

from qkv.mask import Mask
from qkv.similarity import Similarity, SimilarityLike, as_similarity

#: One for all heads, a pattern or class to make one for each head from, or one for each head.
HeadSimilarity: TypeAlias = SimilarityLike | type[Similarity] | Sequence[Similarity]


class PerHead(nn.ModuleList):
    """A similarity for each head: head h of (batch, heads, n, d) is compared by similarity h."""


def attend_per_head(
    attend: Callable[..., Any],
    similarity: Similarity | PerHead,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Mask | None,
    **options: Any,
) -> Any:
    """attend(query, key, value, …) of tensors (batch, heads, …), for all heads or head by head.

    Key and value may have fewer heads than query, see :mod:`qkv.grouped`. It gives a tensor
    or several.
    """
    if not isinstance(similarity, PerHead):
        if key.shape[1] != query.shape[1]:
            options["enable_gqa"] = True
        return attend(query, key, value, similarity=similarity, mask=mask, **options)
    if has_torch_function_variadic(query, key, value):
        # Who watches torch's functions sees one call, not one for each head.
        tensors = (query, key, value)
        return handle_torch_function(
            attend_per_head,
            tensors,
            attend,
            similarity,
            *tensors,
            mask=mask,
            **options,
        )
    batch = tuple(query.shape[:2])
    answers = [
        attend(
            *(of_head(tensor, head, len(similarity)) for tensor in (query, key, value)),
            similarity=similarity_of_head,
            mask=mask and mask.narrow(1, head, head + 1, batch),
            **options,
        )
        for head, similarity_of_head in enumerate(similarity)
    ]
    if isinstance(answers[0], Tensor):
        return torch.cat(answers, dim=1)
    return tuple(torch.cat(parts, dim=1) for parts in zip(*answers, strict=True))


def of_head(tensor: Tensor, head: int, heads: int) -> Tensor:
    """What head `head` of `heads` has of a tensor (batch, heads or fewer, …), as (batch, 1, …)."""
    return tensor.narrow(1, head * tensor.shape[1] // heads, 1)


def for_heads(similarity: HeadSimilarity, heads: int, dim: int) -> Similarity | PerHead:
    """The similarity of a layer with `heads` heads of size `dim`.

    One without parameters serves all heads. A learned one is a pattern: each head gets a copy with
    parameters of its own, drawn anew. A class is made with `dim` for each size it asks for, so
    `Additive` stands for ``Additive(dim, dim, dim)``. A sequence gives each head the one named;
    ``[similarity] * heads`` is one that all heads learn together.
    """
    if isinstance(similarity, type) and issubclass(similarity, Similarity):
        similarity = _instance_of(similarity, dim)
    if isinstance(similarity, Sequence) and not isinstance(similarity, str):
        if len(similarity) != heads:
            raise ValueError(
                f"similarity must be one for each of the {heads} heads; got {len(similarity)}"
            )
        return PerHead(as_similarity(each) for each in similarity)
    pattern = as_similarity(similarity)  # type: ignore[arg-type]
    if not any(True for _ in pattern.parameters()):
        return pattern
    return PerHead(_copy_of(pattern) for _ in range(heads))


def _instance_of(kind: type[Similarity], dim: int) -> Similarity:
    parameters = inspect.signature(kind).parameters.values()
    sizes = [dim for parameter in parameters if parameter.default is parameter.empty]
    return kind(*sizes)


def _copy_of(pattern: Similarity) -> Similarity:
    copied = copy.deepcopy(pattern)
    reset_parameters(copied)
    return copied


def reset_parameters(similarity: nn.Module) -> None:
    """Draw anew what is drawn; a bandwidth or temperature keeps the value it was given."""
    for module in similarity.modules():
        if callable(reset := getattr(module, "reset_parameters", None)):
            reset()
