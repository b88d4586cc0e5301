"""What a plan says of memory is true within a factor of two, measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import qkv
from qkv.benchmarks.measure import can_measure_memory, peak_extra_bytes
from qkv.operators.base import Cost
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
    forward_only: bool = False


_CASES = {
    "dense": _Asked("dense", 1536, dict),
    "dense causal": _Asked("dense", 1536, lambda: {"mask": qkv.mask.Causal()}),
    "dense triangular": _Asked("dense", 1024, lambda: {"similarity": qkv.Triangular(9.0)}),
    "dense city block": _Asked("dense", 400, lambda: {"similarity": _city_block}),
    "streamed": _Asked("streamed", 2048, dict),
    "streamed laplacian": _Asked("streamed", 2048, lambda: {"similarity": qkv.Laplacian(9.0)}),
    "sdpa": _Asked("sdpa", 8192, dict),
    # Both ways of these were not measured: their plans tell of the way forward.
    "sdpa window": _Asked(
        "sdpa", 8192, lambda: {"mask": qkv.mask.Window(8192, 2731)}, forward_only=True
    ),
    "banded": _Asked("banded", 8192, lambda: {"mask": qkv.mask.Window(20, 20)}, forward_only=True),
    "fused": _Asked("fused", 4096, lambda: {"similarity": qkv.Laplacian(9.0)}, forward_only=True),
    "fused additive": _Asked(
        "fused", 2048, lambda: {"similarity": qkv.Additive(64, 64, 32)}, forward_only=True
    ),
    "topk": _Asked("topk", 8192, lambda: {"mask": qkv.mask.TopK(8)}, forward_only=True),
}


@pytest.mark.parametrize(
    ("name", "grad"),
    [
        pytest.param(name, grad, id=f"{name}-{'both ways' if grad else 'forward'}")
        for name, asked in _CASES.items()
        for grad in ((False,) if asked.forward_only else (False, True))
    ],
)
def test_a_plan_tells_the_memory_within_a_factor_of_two(name: str, grad: bool) -> None:
    asked = _CASES[name]
    options = asked.options()
    tokens = [torch.randn(asked.n, 64) for _ in range(3)]
    for x in tokens:
        x.requires_grad_(grad)
    mask = with_bias(options.get("mask"), options.get("bias"))
    problem = validate(*tokens, options.get("similarity"), mask)
    offer = OPERATORS[asked.operator].ask(problem)
    assert isinstance(offer, Cost)
    planned = offer.bytes / MB

    def run() -> None:
        with torch.set_grad_enabled(grad):
            answer = qkv.attend(*tokens, operator=asked.operator, **options)
        if grad:
            torch.autograd.grad(answer, tokens, torch.ones_like(answer), allow_unused=True)

    run()
    measured = [peak_extra_bytes(run) / MB for _ in range(2)]  # pages used again do not show
    answer = asked.n * 64 * 4 / MB
    own = 2 * answer + sum(x.nbytes for x in tokens) / MB if grad else answer
    assert min(measured) - own < 2 * planned + SLACK, (measured, planned, own)
    assert planned < 2 * max(measured) + SLACK, (measured, planned, own)
