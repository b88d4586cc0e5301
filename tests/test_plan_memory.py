"""What a plan says of memory is true within a factor of two, measured."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

import qkv
from qkv.benchmarks.measure import can_measure_memory, peak_extra_bytes
from qkv.jit.scratch import release_memory
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
    forward_only: bool = False  # there is no way back
    d: int = 64


_CASES = {
    "dense": _Asked("dense", 1536, dict),
    "dense causal": _Asked("dense", 1536, lambda: {"mask": qkv.mask.Causal()}),
    "dense triangular": _Asked("dense", 1024, lambda: {"similarity": qkv.Triangular(9.0)}),
    "dense city block": _Asked("dense", 400, lambda: {"similarity": _city_block}),
    "streamed": _Asked("streamed", 2048, dict),
    "streamed laplacian": _Asked("streamed", 2048, lambda: {"similarity": qkv.Laplacian(9.0)}),
    "sdpa": _Asked("sdpa", 8192, dict),
    "sdpa window": _Asked("sdpa", 8192, lambda: {"mask": qkv.mask.Window(8192, 2731)}),
    "sdpa bias": _Asked("sdpa", 8192, lambda: {"bias": lambda i, j: (i - j).abs() * -0.01}),
    "banded": _Asked("banded", 32768, lambda: {"mask": qkv.mask.Window(500, 500)}),
    "banded causal": _Asked("banded", 4096, lambda: {"mask": qkv.mask.Causal()}),
    "fused": _Asked("fused", 16384, lambda: {"similarity": qkv.Laplacian(9.0)}),
    "fused boxcar": _Asked("fused", 16384, lambda: {"similarity": qkv.Boxcar(9.0)}),
    "fused additive": _Asked("fused", 2048, lambda: {"similarity": qkv.Additive(64, 64, 512)}),
    "topk": _Asked("topk", 8192, lambda: {"mask": qkv.mask.TopK(8)}),
    "topk many": _Asked("topk", 4096, lambda: {"mask": qkv.mask.TopK(128)}),
    "lookup": _Asked("lookup", 60_000, lambda: {"similarity": "equal"}),
    "sorted": _Asked("sorted", 300_000, lambda: {"similarity": "gaussian"}, True, 1),
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
    tokens = [torch.randn(asked.n, asked.d) for _ in range(3)]
    for x in tokens:
        x.requires_grad_(grad)
    mask = with_bias(options.get("mask"), options.get("bias"))
    with torch.set_grad_enabled(grad):
        problem = validate(*tokens, options.get("similarity"), mask)
        offer = OPERATORS[asked.operator].ask(problem)
    assert isinstance(offer, Cost)
    planned = offer.bytes / MB

    def run() -> None:
        release_memory()
        with torch.set_grad_enabled(grad):
            answer = qkv.attend(*tokens, operator=asked.operator, **options)
        if grad:
            torch.autograd.grad(answer, tokens, torch.ones_like(answer), allow_unused=True)

    run()
    measured = [peak_extra_bytes(run) / MB for _ in range(2)]  # pages used again do not show
    answer = asked.n * asked.d * 4 / MB
    own = 2 * answer + sum(x.nbytes for x in tokens) / MB if grad else answer
    assert min(measured) - own < 2 * planned + SLACK, (measured, planned, own)
    assert planned < 2 * max(measured) + SLACK, (measured, planned, own)
