"""Distances between all pairs of tokens, without the block (n, m, d) of their differences.

Distances are sums of squared differences: the expansion ‖q‖² − 2qᵀk + ‖k‖² is faster and loses
every digit when keys lie far from the origin.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from qkv.formula.traced import Traced
from qkv.tracing import is_eager

#: The gradient of a squared distance is a difference of two products, of tokens seen from the
#: keys' mean. Up to so many units around it that loses no more than the softmax has lost before.
SAFE_REACH = 16.0

#: Up to so many features of pairs their differences are kept, where a gradient is wanted: they fit
#: into the caches, and torch's own backward pass takes fewer calls.
FEW_FEATURES = 2**18

#: Tokens so long are quicker subtracted than measured, while the differences of all pairs are few.
LONG, MOST_FEATURES = 48, 2**22

#: Squares of numbers near 1 / EXTREME or EXTREME neither vanish nor overflow in float32.
EXTREME = 1e9


def squared_distance(query: Tensor, key: Tensor, unit: float | Tensor = 1.0) -> Tensor:
    """‖(q − k) / unit‖² for every pair, (…, n, m); `unit` is one number or one for each dimension.

    Where nobody traces or transforms, no difference is kept, forwards or backwards.
    """
    if not can_skip_differences(query, key, unit):
        return by_differences(query, key, unit)
    size = unit if isinstance(unit, float) else float(unit.detach())
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad):
        features = max(query.numel() * key.shape[-2], key.numel() * query.shape[-2])
        if features <= max(FEW_FEATURES, query.numel() + key.numel()):
            return by_differences(query, key, unit)
        squared: Tensor = _Squared.apply(query, key, size)  # type: ignore[no-untyped-call]
    else:
        squared = _measure(query, key)
    if isinstance(unit, Tensor):
        return squared / unit.square()
    if unit == 1.0:
        return squared
    return squared.mul_(unit**-2) if not squared.requires_grad else squared * unit**-2


def can_skip_differences(query: Tensor, key: Tensor, unit: float | Tensor) -> bool:
    """Whether distances are measured without keeping the differences of all pairs."""
    if not is_eager(query, key) or query.dtype not in (torch.float32, torch.float64):
        return False
    if isinstance(unit, float):
        return 1 / EXTREME < unit < EXTREME
    if unit.numel() > 1 or not is_eager(unit) or unit.device.type != "cpu":
        return False
    return 1 / EXTREME < float(unit.detach()) < EXTREME


def by_differences(query: Tensor, key: Tensor, unit: float | Tensor = 1.0) -> Tensor:
    """The formula as one writes it down."""
    difference = query.unsqueeze(-2) - key.unsqueeze(-3)  # (..., n, m, d)
    if not (isinstance(unit, float) and unit == 1.0):
        difference = difference / unit
    return difference.square().sum(dim=-1)


def scaled_squares(query: Tensor, key: Tensor, inverse: Tensor) -> Tensor:
    """The same of units whose inverses are at hand, as kernels are derived from it."""
    # The difference is scaled, not the tokens: these would lose the digits that it needs.
    return ((query.unsqueeze(-2) - key.unsqueeze(-3)) * inverse).square().sum(dim=-1)


def root(squared: Tensor) -> Tensor:
    """√u² with the subgradient 0 at u = 0, where the plain root would give inf · 0 = NaN."""
    if is_eager(squared):
        differentiable = torch.is_grad_enabled() and squared.requires_grad
        return _Root.apply(squared) if differentiable else squared.sqrt()  # type: ignore[no-untyped-call]
    if isinstance(squared, Traced):
        return squared.session.elementwise("root", squared)  # one operation of a program
    zero = squared == 0
    return torch.where(zero, 0.0, torch.sqrt(torch.where(zero, 1.0, squared)))


def _distances(query: Tensor, key: Tensor) -> Tensor:
    return torch.cdist(query, key, compute_mode="donot_use_mm_for_euclid_dist")


def _measure(query: Tensor, key: Tensor) -> Tensor:
    features = max(query.numel() * key.shape[-2], key.numel() * query.shape[-2])
    if query.shape[-1] >= LONG and features <= MOST_FEATURES:
        return (query.unsqueeze(-2) - key.unsqueeze(-3)).square_().sum(dim=-1)
    return _distances(query, key).square_()


class _Squared(torch.autograd.Function):
    """‖q − k‖², keeping queries and keys alone."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, unit: float) -> Tensor:
        ctx.save_for_backward(query, key)
        ctx.unit = unit
        return _measure(query, key)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Any:
        query, key = ctx.saved_tensors
        if torch.is_grad_enabled():  # differentiated once more: the formula itself
            wanted = [x for x in (query, key) if x.requires_grad]
            grads = iter(
                torch.autograd.grad(by_differences(query, key), wanted, grad, create_graph=True)
            )
            return *(next(grads) if x.requires_grad else None for x in (query, key)), None
        pull = _pull_centred(query, key, grad, ctx.unit)
        if pull is None:
            pull = _pull(query, key, grad), _pull(key, query, grad.mT)
        return *(x.sum_to_size(y.shape) for x, y in zip(pull, (query, key), strict=True)), None


def _pull_centred(
    query: Tensor, key: Tensor, grad: Tensor, unit: float
) -> tuple[Tensor, Tensor] | None:
    """2 Σⱼ sᵢⱼ (qᵢ − kⱼ) as 2 (qᵢ Σⱼ sᵢⱼ − Σⱼ sᵢⱼ kⱼ), and the same for keys; None where the
    difference would lose digits."""
    if query.shape[-2] == 0 or key.numel() == 0:
        return None
    centre = key.mean(dim=-2, keepdim=True)
    query, key = query - centre, key - centre
    reach = SAFE_REACH * unit
    norm = torch.linalg.vector_norm
    if not (float(norm(query, torch.inf)) <= reach and float(norm(key, torch.inf)) <= reach):
        return None
    of_query = grad.sum(-1, keepdim=True).mul(query).sub_(grad @ key).mul_(2)
    of_key = grad.sum(-2).unsqueeze(-1).mul(key).sub_(grad.mT @ query).mul_(2)
    return of_query, of_key


def _pull(query: Tensor, key: Tensor, grad: Tensor) -> Tensor:
    """2 Σⱼ sᵢⱼ (qᵢ − kⱼ), difference by difference."""
    batch = grad.shape[:-2]
    query, key = (x.expand(*batch, *x.shape[-2:]).contiguous() for x in (query, key))
    distances = _distances(query, key)
    return torch.ops.aten._cdist_backward(  # type: ignore[no-any-return]
        (grad * distances).mul_(2), query, key, 2.0, distances
    )


class _Root(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, squared: Tensor) -> Tensor:
        distance = squared.sqrt()
        ctx.save_for_backward(squared, distance)
        return distance

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        squared, distance = ctx.saved_tensors
        if torch.is_grad_enabled():
            zero = squared == 0
            distance = torch.sqrt(torch.where(zero, 1.0, squared))
            return torch.where(zero, 0.0, grad / (2 * distance))
        slope: Tensor = grad / distance
        return slope.masked_fill_(distance == 0, 0.0).mul_(0.5)
