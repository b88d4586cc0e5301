"""What a plan says of memory is true within a factor of two: every operator, measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import qkv
from qkv.benchmarks.measure import can_measure_memory, peak_extra_bytes
from qkv.operators.base import Offer
from qkv.plan import OPERATORS
from qkv.problem import validate, with_bias

pytestmark = pytest.mark.skipif(
    not can_measure_memory(), reason="the high-water mark of memory is read from Linux's /proc"
)

MB = 2**20
#: What torch and its threads keep to work in does not depend on the problem.
SLACK = 10.0


def _city_block(query: Tensor, key: Tensor) -> Tensor:
    return -(query.unsqueeze(-2) - key.unsqueeze(-3)).abs().sum(-1)


class _Asked(NamedTuple):
    operator: str
    n: int
    options: Callable[[], dict[str, Any]]
    d: int = 64
    d_v: int = 64
    forward_only: bool = False


_CASES = {
    "dense": _Asked("dense", 1536, dict),
    "dense causal": _Asked("dense", 1536, lambda: {"mask": qkv.mask.Causal()}),
    "dense triangular": _Asked("dense", 1024, lambda: {"similarity": qkv.Triangular(9.0)}),
    "dense city block": _Asked("dense", 400, lambda: {"similarity": _city_block}),
    "streamed": _Asked("streamed", 2048, dict),
    "streamed laplacian": _Asked("streamed", 2048, lambda: {"similarity": qkv.Laplacian(9.0)}),
    "sdpa": _Asked("sdpa", 8192, dict),
    "sdpa window": _Asked("sdpa", 8192, lambda: {"mask": qkv.mask.Window(8192, 2731)}),
    "sdpa bias": _Asked("sdpa", 4096, lambda: {"bias": lambda i, j: (i - j) * 0.1}),
    "banded": _Asked("banded", 8192, lambda: {"mask": qkv.mask.Window(20, 20)}),
    "fused": _Asked("fused", 4096, lambda: {"similarity": qkv.Laplacian(9.0)}),
    "fused additive": _Asked("fused", 2048, lambda: {"similarity": qkv.Additive(64, 64, 32)}),
    "topk": _Asked("topk", 8192, lambda: {"mask": qkv.mask.TopK(8)}),
    "lookup": _Asked("lookup", 100_000, lambda: {"similarity": "equal"}, 2, 16),
    "sorted": _Asked(
        "sorted", 200_000, lambda: {"similarity": qkv.Gaussian(0.05)}, 1, 1, forward_only=True
    ),
}


@pytest.mark.parametrize("grad", [False, True], ids=["forward", "both ways"])
@pytest.mark.parametrize("name", _CASES)
def test_a_plan_tells_the_memory_within_a_factor_of_two(name: str, grad: bool) -> None:
    asked = _CASES[name]
    if grad and asked.forward_only:
        pytest.skip("this operator has no backward pass")
    options = asked.options()
    tokens = [torch.randn(asked.n, d) for d in (asked.d, asked.d, asked.d_v)]
    if asked.operator == "lookup":
        tokens[:2] = [torch.randint(0, 50, x.shape).float() for x in tokens[:2]]
    for x in tokens:
        x.requires_grad_(grad)
    mask = with_bias(options.get("mask"), options.get("bias"))
    problem = validate(*tokens, options.get("similarity"), mask)
    offer = OPERATORS[asked.operator].ask(problem)
    assert isinstance(offer, Offer)
    planned = offer.cost().bytes / MB

    def run() -> None:
        with torch.set_grad_enabled(grad):
            answer = qkv.attend(*tokens, operator=asked.operator, **options)
        if grad:
            torch.autograd.grad(answer, tokens, torch.ones_like(answer), allow_unused=True)

    run()
    measured = [peak_extra_bytes(run) / MB for _ in range(2)]  # pages used again do not show
    answer = asked.n * asked.d_v * 4 / MB
    own = 2 * answer + sum(x.nbytes for x in tokens) / MB if grad else answer
    assert min(measured) - own < 2 * planned + SLACK, (measured, planned, own)
    assert planned < 2 * max(measured) + SLACK, (measured, planned, own)
