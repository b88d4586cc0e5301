"""Every operator under torch.compile(fullgraph=True), torch.func transforms and opcheck."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv import dropout
from qkv.operators import banded, sdpa, streamed
from qkv.operators.fused import ops as fused_ops
from qkv.operators.fused.registry import SIMILARITIES

COMPILED = [
    ("dense", "gaussian", None),
    ("dense", "triangular", qkv.mask.TopK(3)),
    ("sdpa", None, None),
    ("sdpa", None, qkv.mask.Causal()),
    ("sdpa", "cosine", qkv.mask.Window(3, 3)),
    ("streamed", "laplacian", qkv.mask.Lengths([3, 20])),
    ("streamed", qkv.Additive(5, 5, 7), qkv.mask.Causal()),
    ("fused", qkv.Additive(5, 5, 7), qkv.mask.Window(3, 2)),
    ("fused", qkv.Gaussian(0.7, learnable=True), torch.randn(23, 23)),
    ("banded", None, qkv.mask.Window(3, 2)),
    ("banded", None, qkv.mask.Dilated(2, 3)),
    ("lookup", "equal", qkv.mask.Lengths([3, 20])),
    ("topk", "laplacian", qkv.mask.TopK(3) & qkv.mask.Causal()),
    (None, lambda query, key: query @ key.mT, qkv.mask.Blocks(4)),
]


def _inputs() -> list[Tensor]:
    return [torch.randn(2, 3, 23, 5, requires_grad=True) for _ in range(3)]


@pytest.mark.filterwarnings("default")  # the compiler's own warnings are not ours to mend
@pytest.mark.parametrize(
    ("operator", "similarity", "mask"),
    COMPILED,
    ids=map(str, range(len(COMPILED))),
)
def test_compiles_into_one_graph(
    operator: str | None, similarity: Any, mask: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Several tiles, but few: each is a part of the graph, and the compiler's time grows with it.
    monkeypatch.setattr(sdpa, "TILE_BYTES", 4_000)
    monkeypatch.setattr(streamed, "TILE_BYTES", 40_000)

    def function(*tensors: Tensor) -> Tensor:
        return qkv.attend(*tensors, similarity=similarity, mask=mask, operator=operator)

    torch._dynamo.reset()
    tensors = _inputs()
    compiled = torch.compile(function, fullgraph=True)
    found, reference = compiled(*tensors), function(*tensors)
    torch.testing.assert_close(found, reference)
    for own, other in zip(
        torch.autograd.grad(found.square().sum(), tensors),
        torch.autograd.grad(reference.square().sum(), tensors),
        strict=True,
    ):
        torch.testing.assert_close(own, other, rtol=1e-4, atol=1e-5)


@pytest.mark.filterwarnings("default")
def test_compiled_dropout_drops_the_same_weights_forwards_and_backwards() -> None:
    query, key = torch.randn(2, 2, 31, 5).unbind()
    value = torch.eye(31).expand(2, 31, 31).clone().requires_grad_()

    @torch.compile(fullgraph=True)
    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return qkv.attend(query, key, value, dropout=0.25)

    answer = function(query, key, value)  # with unit vectors as values: the weights
    weights = qkv.weights(query, key)
    dropped = answer == 0
    torch.testing.assert_close(answer, torch.where(dropped, 0, weights / 0.75))
    assert 0.2 < dropped.float().mean() < 0.3
    upstream = torch.randn_like(answer)
    (gradient,) = torch.autograd.grad((answer * upstream).sum(), value)
    torch.testing.assert_close(gradient, answer.detach().mT @ upstream)


# torch has no batching rule for its kernel and says so; the answer is right all the same.
@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("operator", ["dense", "sdpa", "streamed"])
@pytest.mark.parametrize("mask", [None, qkv.mask.Causal(), qkv.mask.Window(2, 2)], ids=repr)
def test_function_transforms(operator: str, mask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "TILE_BYTES", 400)
    tensors = [torch.randn(3, 11, 5) for _ in range(3)]

    def function(*tensors: Tensor) -> Tensor:
        return qkv.attend(*tensors, mask=mask, operator=operator)

    torch.testing.assert_close(torch.vmap(function)(*tensors), function(*tensors))
    found = torch.func.grad(lambda *x: function(*x).square().sum())(*tensors)
    query = tensors[0].clone().requires_grad_()
    (reference,) = torch.autograd.grad(function(query, *tensors[1:]).square().sum(), query)
    torch.testing.assert_close(found, reference)


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize(
    "make", [qkv.Gaussian, lambda: qkv.Epanechnikov([0.7] * 5), lambda: qkv.Cosine(0.5)]
)
def test_a_similarity_may_be_made_inside_of_what_is_compiled(make: Any) -> None:
    def function(*tensors: Tensor) -> Tensor:
        return qkv.attend(*tensors, similarity=make())

    torch._dynamo.reset()
    tensors = [torch.randn(2, 7, 5) for _ in range(3)]
    compiled = torch.compile(function, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(*tensors), function(*tensors))


def test_custom_operators_pass_torchs_own_checks() -> None:
    torch.library.opcheck(dropout.row_keys, (torch.tensor(5), 7))
    keys = torch.arange(14, dtype=torch.int32)
    torch.library.opcheck(dropout.keep, (keys.view(2, 7), keys[:3], 0.4))
    query, key, value = (torch.randn(2, 3, 7, 5, requires_grad=True) for _ in range(3))
    start = torch.arange(7).view(1, 1, 7) - 2
    torch.library.opcheck(banded.banded, (query, key, value, start, start + 4, None, 0.5))
    line = torch.randn(1, 3, 13)
    torch.library.opcheck(banded.banded, (query, key, value, start, start + 4, line, 0.5))


@pytest.mark.parametrize("longest", [0, 4])
@pytest.mark.parametrize("kind", SIMILARITIES)
def test_fused_operators_pass_torchs_own_checks(kind: str, longest: int) -> None:
    query, key, value = (torch.randn(2, 7, 5, requires_grad=True) for _ in range(3))
    parameter = torch.rand(4 if kind == "gated" else 5, requires_grad=True)
    if kind == "gated":
        parameter = parameter[:1].detach().requires_grad_()
    bias, start = torch.randn(7, 7, requires_grad=True), torch.arange(7) - 2
    torch.library.opcheck(
        fused_ops.fused_forward,
        (query, key, value, parameter, bias, start, start + 4, None, None, kind, 0.0, longest),
    )
