"""One similarity whose scores are changed: a multiple, a cap, a temperature."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor, nn

from qkv.broadcast import batch_entries
from qkv.similarity.algebra.heads import check_heads, over_heads
from qkv.similarity.base import (
    DotForm,
    FusedForm,
    PreparedSize,
    Similarity,
    log_or_never,
    widen,
)
from qkv.similarity.dot import fused_combination
from qkv.similarity.positive_parameter import Positive


class _Changed(Similarity):
    """Another similarity, whose scores are changed pair by pair."""

    def __init__(self, base: Similarity) -> None:
        super().__init__()
        self.base = base
        self.weighting, self.family = base.weighting, base.family
        self.may_vanish, self.nonnegative = base.may_vanish, False
        self.depends_on_spread, self.per_head = base.depends_on_spread, base.per_head

    def check(self, query: Tensor, key: Tensor) -> None:
        self.base.check(query, key)

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        return self.base.prepare(query, key)

    def prepared_size(self) -> PreparedSize | None:
        return self.base.prepared_size()

    def change(self, scores: Tensor) -> Tensor:
        """What becomes of scores."""
        raise TypeError(f"{type(self).__name__} must define change(scores)")

    def change_log(self, log_scores: Tensor) -> Tensor:
        """The same of the logarithms of kernels."""
        return log_or_never(self.change(log_scores.exp()))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return self.change(self.base(query, key))

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return self.change(self.base.score(query, key))

    def log_score(self, query: Tensor, key: Tensor) -> Tensor:
        return self._changed(self.base.log_score(query, key))

    def log_scores(self, query: Tensor, key: Tensor) -> Tensor:
        return self._changed(self.base.log_scores(query, key))

    def _changed(self, log_scores: Tensor) -> Tensor:
        softmax = self.weighting == "softmax"
        return self.change(log_scores) if softmax else self.change_log(log_scores)

    def as_fused(self, query: Tensor, key: Tensor) -> FusedForm | str:
        return fused_combination(self, query, key) or super().as_fused(query, key)

    def tensors(self) -> tuple[Tensor, ...]:
        return self.base.tensors()

    def signature(self) -> Hashable | None:
        base = self.base.signature()
        return None if base is None else (type(self), base)

    def pair_width(self, dim: int) -> int:
        return 1 + self.base.pair_width(dim)

    def pair_flops(self, dim: int) -> int:
        return 1 + self.base.pair_flops(dim)

    def _inner(self) -> str:
        inner = self.base.describe()
        return f"({inner})" if self.base.is_combined else inner

    def __repr__(self) -> str:
        return self.describe()


class Scaled(_Changed):
    """factor * base: a number, or a tensor with one for each head, (heads,), maybe learned."""

    is_combined = True

    def __init__(self, base: Similarity, factor: float | Tensor) -> None:
        super().__init__(base)
        self.factor: float | Tensor
        if isinstance(factor, nn.Parameter):
            self.factor = factor
        elif isinstance(factor, Tensor):
            self.register_buffer("factor", factor, persistent=False)
        else:
            self.factor = float(factor)
        if isinstance(factor, Tensor):
            if not factor.is_floating_point():
                raise TypeError(f"a factor must be floating point; got {factor.dtype}")
            self.per_head = self.per_head or factor.ndim > 0
        elif not math.isfinite(factor) or (base.weighting == "proportional" and factor <= 0):
            wanted = "finite" if base.weighting == "softmax" else "positive, as kernels are"
            raise ValueError(f"a factor must be {wanted}; got {factor}")

    def check(self, query: Tensor, key: Tensor) -> None:
        super().check(query, key)
        if isinstance(self.factor, Tensor):
            check_heads("factor", self.factor, query, key)

    def change(self, scores: Tensor) -> Tensor:
        return self._fit(scores) * scores

    def change_log(self, log_scores: Tensor) -> Tensor:
        factor = self._fit(log_scores)
        return log_scores + (math.log(factor) if isinstance(factor, float) else factor.log())

    def _fit(self, like: Tensor) -> float | Tensor:
        if isinstance(self.factor, Tensor):
            return over_heads(self.factor).to(like)
        return self.factor

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm | str:
        form = self.base.as_dot(query, key)
        if isinstance(form, str):
            return form
        factor = self.factor
        if self.weighting == "proportional":
            shift = over_heads(factor).squeeze(-1).log() if isinstance(factor, Tensor) else (
                torch.tensor(math.log(factor), device=query.device)
            )  # fmt: skip
            offset = shift.to(widen(query[..., 0]).dtype)
            return form._replace(offset=offset if form.offset is None else form.offset + offset)
        if isinstance(factor, float):
            return DotForm(
                form.query,
                form.key,
                form.scale * factor,
                None if form.key_bias is None else form.key_bias * factor,
                None if form.offset is None else form.offset * factor,
            )
        if form.key_bias is not None or form.offset is not None:
            return "a learned multiple of a distance is written out"
        return form._replace(query=form.query * over_heads(factor).to(form.query.dtype))

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> Similarity:
        if not self.per_head:
            return self
        factor = self.factor
        if isinstance(factor, Tensor):
            factor = batch_entries(factor, axis, start, stop, batch, trailing=0)
        return Scaled(self.base.narrow(axis, start, stop, batch), factor)

    def tensors(self) -> tuple[Tensor, ...]:
        factor = (self.factor,) if isinstance(self.factor, Tensor) else ()
        return *factor, *super().tensors()

    def signature(self) -> Hashable | None:
        known = super().signature()
        if known is None or isinstance(self.factor, float):
            return known
        factor = self.factor
        return known, factor.shape, factor.dtype, factor.device, factor.requires_grad

    def describe(self) -> str:
        if isinstance(self.factor, float):
            return f"{self.factor:g} * {self._inner()}"
        return f"tensor {tuple(self.factor.shape)} * {self._inner()}"


class SoftCapped(_Changed):
    """cap · tanh(score / cap): scores that stay between −cap and cap, as Gemma has them."""

    def __init__(self, base: Similarity, cap: float) -> None:
        super().__init__(base)
        _check_softmax("soft_cap", base)
        if not (math.isfinite(cap) and cap > 0):
            raise ValueError(f"cap must be positive and finite; got {cap}")
        self.cap, self.family = float(cap), "any"

    def change(self, scores: Tensor) -> Tensor:
        return self.cap * torch.tanh(scores / self.cap)

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> Similarity:
        return SoftCapped(self.base.narrow(axis, start, stop, batch), self.cap)

    def pair_flops(self, dim: int) -> int:
        return 12 + self.base.pair_flops(dim)

    def describe(self) -> str:
        return f"{self._inner()}.soft_cap({self.cap:g})"


class Tempered(_Changed):
    """score / temperature: one, or one for each head; learned as its logarithm, so never 0."""

    def __init__(
        self,
        base: Similarity,
        temperature: float | Sequence[float] | Tensor | Positive,
        learnable: bool = False,
    ) -> None:
        super().__init__(base)
        _check_softmax("with_temperature", base)
        if not isinstance(temperature, Positive):
            temperature = Positive("temperature", temperature, learnable)
        self.temperature = temperature
        self.per_head = self.per_head or temperature.size is not None

    def check(self, query: Tensor, key: Tensor) -> None:
        super().check(query, key)
        if self.temperature.size is not None:
            check_heads("temperature", torch.empty(self.temperature.size), query, key)

    def change(self, scores: Tensor) -> Tensor:
        temperature: float | Tensor = self.temperature(scores)
        return scores / (
            over_heads(temperature) if isinstance(temperature, Tensor) else temperature
        )

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm | str:
        temperature = self.temperature(widen(query[..., 0]))
        inverse = 1 / temperature
        return Scaled(self.base, inverse).as_dot(query, key)

    def narrow(self, axis: int, start: int, stop: int, batch: tuple[int, ...]) -> Similarity:
        if not self.per_head:
            return self
        base = self.base.narrow(axis, start, stop, batch)
        if self.temperature.size is None:
            return Tempered(base, self.temperature)
        like = torch.empty((), dtype=torch.float64)
        whole = self.temperature(like)
        assert isinstance(whole, Tensor)
        return Scaled(base, 1 / batch_entries(whole, axis, start, stop, batch, trailing=0))

    def tensors(self) -> tuple[Tensor, ...]:
        return *self.temperature.tensors(), *super().tensors()

    def signature(self) -> Hashable | None:
        known = super().signature()
        held = ((x.dtype, x.device, x.requires_grad) for x in self.temperature.tensors())
        return None if known is None else (known, self.temperature.size, *held)

    def describe(self) -> str:
        return f"{self._inner()}.with_temperature({self.temperature.extra_repr()})"


def _check_softmax(name: str, base: Similarity) -> None:
    if base.weighting != "softmax":
        raise TypeError(
            f"{name} changes scores of softmax weights; {base.describe()} has {base.weighting} ones"
        )
