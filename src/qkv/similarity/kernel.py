"""Similarities that are functions of distance: the kernels of Nadaraya-Watson regression.

All share u = ‖(q − k) / bandwidth‖, the Euclidean distance in units of the bandwidth, which is one
number or one for each key dimension.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Hashable, Sequence
from typing import Self

import torch
from torch import Tensor

from qkv.formula.forms import was_traced
from qkv.similarity.base import (
    DotForm,
    FusedForm,
    Similarity,
    SortedForm,
    derived_form,
    log_or_never,
    steps,
    widen,
)
from qkv.similarity.distance import root, squared_distance
from qkv.similarity.positive_parameter import Positive
from qkv.tracing import can_read_values, is_eager

#: A squared distance written as a dot product loses eps · (spread / bandwidth)² of each score.
#: Up to this spread (in squared bandwidths) that is no more than the direct formula loses.
SAFE_SPREAD = 256.0


class Euclidean(Similarity):
    """f(q, k) = −‖q − k‖², Eq. 6, with softmax weights."""

    depends_on_spread = True
    family = "distance"

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return -squared_distance(query, key)

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm | str:
        return _distance_as_dot(widen(query), widen(key), factor=1.0)

    def as_fused(self, query: Tensor, key: Tensor) -> FusedForm:
        return FusedForm("euclidean", widen(query), widen(key), widen(query).new_zeros(1))

    def as_sorted(self, key: Tensor) -> SortedForm:
        return SortedForm("gaussian", 0.5**0.5)

    def tensors(self) -> tuple[Tensor, ...]:
        return ()

    def pair_width(self, dim: int) -> int:
        return 1 if is_eager() else dim

    def pair_flops(self, dim: int) -> int:
        return 3 * dim


class Kernel(Similarity):
    """A non-negative function of u; weights are proportional to it (Eq. 4)."""

    weighting = "proportional"

    def __init__(
        self, bandwidth: float | Sequence[float] | Tensor = 1.0, learnable: bool = False
    ) -> None:
        super().__init__()
        self.bandwidth = Positive("bandwidth", bandwidth, learnable)

    def check(self, query: Tensor, key: Tensor) -> None:
        super().check(query, key)
        self.bandwidth.check(key.shape[-1])

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return self.profile(squared_distance(query, key, self.bandwidth(key)))

    def profile(self, squared: Tensor) -> Tensor:
        """The kernel as a function of u²."""
        raise TypeError(f"{type(self).__name__} must define profile(squared)")

    def log_profile(self, squared: Tensor) -> Tensor:
        """The logarithm of the kernel as a function of u²; -inf where it is 0."""
        return log_or_never(self.profile(squared))

    def with_bandwidth(self, bandwidth: float | Sequence[float]) -> Self:
        """The same kernel at another bandwidth, which is not learned."""
        made = copy.copy(self)
        made._modules = {**self._modules, "bandwidth": Positive("bandwidth", bandwidth)}
        return made

    def at_distance(self, distance: Tensor) -> Tensor:
        """The kernel as a function of u, for those who have it at hand."""
        return self.profile(distance.square())

    def signature(self) -> Hashable | None:
        known = super().signature()
        return None if known is None else (known, self.bandwidth.size)

    def over_sorted(self, kernel: str, key: Tensor) -> SortedForm | str:
        """This kernel, known to sorted keys by name; the bandwidth is a number that is read."""
        bandwidth = self.bandwidth(key)
        if isinstance(bandwidth, float):
            return SortedForm(kernel, bandwidth)
        if not can_read_values(bandwidth):
            return "the bandwidth's value is unavailable while tracing"
        return SortedForm(kernel, float(bandwidth.detach().flatten()[0]))

    def tensors(self) -> tuple[Tensor, ...]:
        return self.bandwidth.tensors()

    def pair_width(self, dim: int) -> int:
        return 1 if self.bandwidth.size in (None, 1) and is_eager() else dim

    def pair_flops(self, dim: int) -> int:
        return 4 * dim + 8


class Gaussian(Kernel):
    """K(u) = exp(−u²/2), the first kernel of Eq. 5; never exactly 0, see :meth:`log_score`."""

    depends_on_spread = True
    family = "distance"

    def profile(self, squared: Tensor) -> Tensor:
        return torch.exp(-0.5 * squared)

    def log_profile(self, squared: Tensor) -> Tensor:
        # Not log(exp(...)): far from all keys every exp underflows, and its log with it.
        return -0.5 * squared

    def log_score(self, query: Tensor, key: Tensor) -> Tensor:
        return self.log_profile(squared_distance(query, key, self.bandwidth(key)))

    def as_dot(self, query: Tensor, key: Tensor) -> DotForm | str:
        query, key = widen(query), widen(key)
        return _distance_as_dot(query, key, factor=0.5, bandwidth=self.bandwidth(key))

    def as_fused(self, query: Tensor, key: Tensor) -> FusedForm:
        return _distance_as_fused("gaussian", widen(query), widen(key), self.bandwidth(key))

    def as_sorted(self, key: Tensor) -> SortedForm | str:
        return self.over_sorted("gaussian", key)


class Laplacian(Kernel):
    """K(u) = exp(−u)."""

    family = "distance"

    def profile(self, squared: Tensor) -> Tensor:
        return torch.exp(-root(squared))

    def log_profile(self, squared: Tensor) -> Tensor:
        return -root(squared)

    def log_score(self, query: Tensor, key: Tensor) -> Tensor:
        return self.log_profile(squared_distance(query, key, self.bandwidth(key)))

    def as_fused(self, query: Tensor, key: Tensor) -> FusedForm:
        return _distance_as_fused("laplacian", widen(query), widen(key), self.bandwidth(key))

    def as_sorted(self, key: Tensor) -> SortedForm | str:
        return self.over_sorted("laplacian", key)


class CompactKernel(Kernel):
    """A kernel that is 0 beyond one bandwidth: a query far from all keys attends to nothing."""

    may_vanish = True


class Boxcar(CompactKernel):
    """K(u) = 1 where u ≤ 1, else 0; the second kernel of Eq. 5."""

    nonnegative = True
    has_steps = True
    family = "steps"

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        bandwidth = self.bandwidth(key)
        with torch.no_grad():
            scores = self.profile(squared_distance(query, key, bandwidth))
        tokens = (query, key) if isinstance(bandwidth, float) else (query, key, bandwidth)
        return steps(scores, *tokens)

    def profile(self, squared: Tensor) -> Tensor:
        # 2 − ⌈u²⌉ within 0 and 1, by which NaN shows.
        return (2 - squared.ceil()).clamp(0, 1)

    def as_fused(self, query: Tensor, key: Tensor) -> FusedForm:
        return _distance_as_fused("boxcar", widen(query), widen(key), self.bandwidth(key))

    def as_sorted(self, key: Tensor) -> SortedForm | str:
        return self.over_sorted("boxcar", key)


class Triangular(CompactKernel):
    """K(u) = max(0, 1 − u); the third formula of Eq. 5, where it is called Epanechnikov."""

    nonnegative = True
    family = "distance"

    def profile(self, squared: Tensor) -> Tensor:
        return (1 - root(squared)).clamp(min=0)

    def as_fused(self, query: Tensor, key: Tensor) -> FusedForm:
        return _distance_as_fused("triangular", widen(query), widen(key), self.bandwidth(key))

    def as_sorted(self, key: Tensor) -> SortedForm | str:
        return self.over_sorted("triangular", key)


class Epanechnikov(CompactKernel):
    """K(u) = max(0, 1 − u²), Epanechnikov's own kernel."""

    nonnegative = True
    family = "distance"

    def profile(self, squared: Tensor) -> Tensor:
        return (1 - squared).clamp(min=0)

    def as_fused(self, query: Tensor, key: Tensor) -> FusedForm:
        return _distance_as_fused("epanechnikov", widen(query), widen(key), self.bandwidth(key))

    def as_sorted(self, key: Tensor) -> SortedForm | str:
        return self.over_sorted("epanechnikov", key)


class Biweight(CompactKernel):
    """K(u) = max(0, 1 − u²)²."""

    nonnegative = True
    family = "distance"

    def profile(self, squared: Tensor) -> Tensor:
        return (1 - squared).clamp(min=0).square()

    def as_fused(self, query: Tensor, key: Tensor) -> FusedForm:
        return _distance_as_fused("biweight", widen(query), widen(key), self.bandwidth(key))

    def as_sorted(self, key: Tensor) -> SortedForm | str:
        return self.over_sorted("biweight", key)


class Tricube(CompactKernel):
    """K(u) = max(0, 1 − u³)³."""

    nonnegative = True
    family = "distance"

    def profile(self, squared: Tensor) -> Tensor:
        return (1 - squared * root(squared)).clamp(min=0) ** 3

    def as_fused(self, query: Tensor, key: Tensor) -> FusedForm:
        return _distance_as_fused("tricube", widen(query), widen(key), self.bandwidth(key))

    def as_sorted(self, key: Tensor) -> SortedForm | str:
        return self.over_sorted("tricube", key)


class OfDistance(Kernel):
    """K(u) = function(u), for any function of the distance in bandwidths that is never negative.

    >>> import qkv
    >>> import numpy as np
    >>> cauchy = qkv.similarity.OfDistance(lambda u: 1 / (1 + u**2), bandwidth=0.5)
    >>> qkv.weights(np.array([[0.0]]), np.array([[0.0], [0.5]]), similarity=cauchy).round(3)
    array([[0.667, 0.333]])
    """

    may_vanish = True

    def __init__(
        self,
        function: Callable[[Tensor], Tensor],
        bandwidth: float | Sequence[float] | Tensor = 1.0,
        learnable: bool = False,
    ) -> None:
        super().__init__(bandwidth, learnable)
        if not callable(function):
            raise TypeError(
                f"function must be a callable u -> weight; got {type(function).__name__}"
            )
        self.function = function

    def profile(self, squared: Tensor) -> Tensor:
        return self.at_distance(root(squared))

    def at_distance(self, distance: Tensor) -> Tensor:
        weights = self.function(distance)
        if not isinstance(weights, Tensor) or weights.shape != distance.shape:
            came = tuple(weights.shape) if isinstance(weights, Tensor) else type(weights).__name__
            raise ValueError(
                f"function must return a weight for each distance, {tuple(distance.shape)}; "
                f"got {came}"
            )
        return weights

    @property
    def formula(self) -> object:
        return self.function

    def signature(self) -> Hashable | None:
        return super().signature(), was_traced(self.function)

    def as_fused(self, query: Tensor, key: Tensor) -> FusedForm | str:
        def score(query: Tensor, key: Tensor) -> Tensor:
            return self.score(*self.prepare(query, key))

        return derived_form(score, self.function, query, key, proportional=True)

    def extra_repr(self) -> str:
        return getattr(self.function, "__name__", "")


def _distance_as_fused(
    kind: str, query: Tensor, key: Tensor, bandwidth: float | Tensor
) -> FusedForm:
    if isinstance(bandwidth, float):
        return FusedForm(kind, query, key, query.new_full((key.shape[-1],), 1 / bandwidth))
    inverse = (1 / bandwidth) * query.new_ones(key.shape[-1])
    kind = f"learned_{kind}" if inverse.requires_grad else kind
    return FusedForm(kind, query, key, inverse.to(query.dtype))


def _distance_as_dot(
    query: Tensor, key: Tensor, factor: float, bandwidth: float | Tensor = 1.0
) -> DotForm | str:
    """−factor·‖q − k‖² as 2·factor·qᵀk − factor·‖k‖² − factor·‖q‖², both centred first."""
    if not can_read_values(query, key):
        return "whether a distance may be written as a dot product depends on the keys' spread"
    if key.shape[-2] == 0 or query.numel() == 0:
        return "there is nothing to compare"
    centre = key.detach().mean(dim=-2, keepdim=True)
    query, key = (query - centre) / bandwidth, (key - centre) / bandwidth
    query_norm, key_norm = query.square().sum(-1), key.square().sum(-1)
    spread = max(query_norm.detach().max().item(), key_norm.detach().max().item())
    if not spread <= SAFE_SPREAD:  # also where it is NaN
        return (
            f"the data spread over {spread**0.5:.3g} bandwidths, where a distance written as a "
            f"dot product would lose digits (limit {SAFE_SPREAD**0.5:.0f})"
        )
    return DotForm(
        query,
        key,
        scale=2 * factor,
        key_bias=-factor * key_norm,
        offset=-factor * query_norm,
    )
