"""The dot product and its relatives; all of them run on fused dot-product kernels."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from qkv.linear import linear
from qkv.similarity.base import DotForm, FusedForm, PreparedSize, Similarity, product, widen
from qkv.similarity.positive_parameter import Positive


def scaled_product(query: Tensor, key: Tensor, scale: Tensor) -> Tensor:
    """What all of them come to."""
    return (query @ key.mT) * scale


def fused_product(form: DotForm) -> FusedForm:
    """A dot product as a fused kernel takes it, if no key and no query has a term of its own."""
    query, key = widen(form.query), widen(form.key)
    return FusedForm("dot", query, key, query.new_full((1,), form.scale))


def fused_combination(similarity: Similarity, query: Tensor, key: Tensor) -> FusedForm | None:
    """A combination of dot products likewise; None where it is more than one dot product."""
    form = similarity.as_dot(query, key) if similarity.family == "dot" else None
    if isinstance(form, DotForm) and form.key_bias is None and form.offset is None:
        return fused_product(form)
    return None


def _as_fused(self: Dot | ScaledDot | Cosine | Bilinear, query: Tensor, key: Tensor) -> FusedForm:
    return fused_product(self.as_dot(query, key))


class Dot(Similarity):
    """f(q, k) = qᵀk.

    The dot product follows from the distance of Eq. 6 when keys have about one length (Eq. 7).
    """

    family = "dot"

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return product(query, key.mT)

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm:
        return DotForm(query, key)

    as_fused = _as_fused

    def tensors(self) -> tuple[Tensor, ...]:
        return ()


class ScaledDot(Similarity):
    """f(q, k) = qᵀk / √d, Eq. 8; `scale` replaces 1/√d where given."""

    family = "dot"

    def __init__(self, scale: float | None = None) -> None:
        super().__init__()
        if scale is not None and not math.isfinite(scale):
            raise ValueError(f"scale must be finite; got {scale}")
        self.scale = scale

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return product(query * self.as_dot(query, key).scale, key.mT)

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm:
        scale = 1.0 / math.sqrt(max(query.shape[-1], 1)) if self.scale is None else self.scale
        return DotForm(query, key, scale)

    as_fused = _as_fused

    def tensors(self) -> tuple[Tensor, ...]:
        return ()

    def extra_repr(self) -> str:
        return "" if self.scale is None else f"scale={self.scale}"


class Cosine(Similarity):
    """f(q, k) = cos(q, k) / temperature; a zero vector is at cosine 0 to everything."""

    family = "dot"

    def __init__(self, temperature: float = 1.0, learnable: bool = False) -> None:
        super().__init__()
        self.temperature = Positive("temperature", float(temperature), learnable)

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        query, key = widen(query), widen(key)
        return _unit(query) / self.temperature(query), _unit(key)

    def prepared_size(self) -> PreparedSize:
        return PreparedSize(1, 0)

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return product(query, key.mT)

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm:
        temperature = self.temperature(query)
        if isinstance(temperature, float):
            return DotForm(_unit(widen(query)), _unit(widen(key)), 1 / temperature)
        return DotForm(*self.prepare(query, key))

    as_fused = _as_fused

    def tensors(self) -> tuple[Tensor, ...]:
        return self.temperature.tensors()


class Bilinear(Similarity):
    """f(q, k) = qᵀWk, the multiplicative score of Eq. 10; queries and keys of different sizes."""

    family = "dot"

    def __init__(self, query_dim: int, key_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(query_dim, key_dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.xavier_uniform_(self.weight)

    def check(self, query: Tensor, key: Tensor) -> None:
        check_sizes(self, query, key, *self.weight.shape)

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return widen(linear(query, self.weight.mT)), widen(key)  # (..., n, d_k), (..., m, d_k)

    def prepared_size(self) -> PreparedSize:
        return PreparedSize(0, self.weight.shape[1])

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return product(query, key.mT)

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm:
        return DotForm(linear(query, self.weight.mT), key)

    as_fused = _as_fused

    def tensors(self) -> tuple[Tensor, ...]:
        return (self.weight,)

    def extra_repr(self) -> str:
        return f"query_dim={self.weight.shape[0]}, key_dim={self.weight.shape[1]}"


def check_sizes(
    similarity: Similarity, query: Tensor, key: Tensor, query_dim: int, key_dim: int
) -> None:
    """Raise ValueError unless a learned similarity meets the sizes it was made for."""
    for name, axis, tensor, dim in (("query", "n", query, query_dim), ("key", "m", key, key_dim)):
        if tensor.shape[-1] != dim:
            raise ValueError(
                f"{name} must have shape (..., {axis}, {dim}) to match {type(similarity).__name__};"
                f" got {tuple(tensor.shape)}"
            )


def _unit(vectors: Tensor) -> Tensor:
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True)
    unit: Tensor = vectors / length.masked_fill(length == 0, 1.0)
    return unit
