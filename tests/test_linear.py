"""Products with weights are those of torch, whichever library makes them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qkv
from qkv import linear as module
from qkv.linear import Linear, linear

ROWS, D, HIDDEN = 1543, 67, 71  # above LEAST multiply-adds


def _inputs(*lead: int) -> list[Tensor]:
    torch.manual_seed(1)
    shapes = (*(lead or (ROWS,)), D), (HIDDEN, D), (HIDDEN,)
    return [torch.randn(shape).requires_grad_() for shape in shapes]


def _needs_onednn() -> None:
    if not module._has_onednn():
        pytest.skip("oneDNN is asked on processors with AVX-512 alone")


def _counted(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """The tokens of all products that oneDNN makes from now on."""
    asked: list[Tensor] = []
    by_onednn = module._by_onednn

    def counting(tokens: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        asked.append(tokens)
        return by_onednn(tokens, weight, bias)

    monkeypatch.setattr(module, "_by_onednn", counting)
    return asked


@pytest.mark.parametrize("lead", [(ROWS,), (1, ROWS), (3, 5, 113)])
@pytest.mark.parametrize("biased", [False, True])
def test_products_and_their_gradients_are_those_of_torch(
    lead: tuple[int, ...], biased: bool
) -> None:
    inputs = _inputs(*lead)[: 3 if biased else 2]
    found, wanted = linear(*inputs), F.linear(*inputs)
    torch.testing.assert_close(found, wanted)
    upstream = torch.randn_like(found)
    pairs = zip(*(torch.autograd.grad(x, inputs, upstream) for x in (found, wanted)), strict=True)
    for ours, theirs in pairs:
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


def test_second_derivatives_are_those_of_torch() -> None:
    inputs = _inputs()
    second = []
    for function in (linear, F.linear):
        first = torch.autograd.grad(function(*inputs).square().mean(), inputs, create_graph=True)
        total = torch.stack([x.square().sum() for x in first]).sum()
        second.append(torch.autograd.grad(total, inputs))
    for ours, theirs in zip(*second, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_large_products_are_made_by_onednn_and_others_by_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _needs_onednn()
    asked = _counted(monkeypatch)
    tokens, weight, bias = (x.detach() for x in _inputs())
    for few in (tokens[:40], tokens[:, :3]):
        linear(few, weight[:, : few.shape[1]], bias)
    linear(tokens.double(), weight.double())
    linear(tokens.T.contiguous().T, weight)
    with torch.autocast("cpu", torch.bfloat16):
        linear(tokens, weight)
    torch.func.vmap(linear, (0, None))(tokens.unsqueeze(0), weight)
    assert asked == []
    linear(tokens, weight, bias)
    assert len(asked) == 1


def test_hooks_of_a_module_are_called_and_its_looks_are_torchs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _needs_onednn()
    asked = _counted(monkeypatch)
    own, theirs = Linear(D, HIDDEN), nn.Linear(D, HIDDEN)
    assert str(own) == str(theirs)
    theirs.load_state_dict(own.state_dict())
    seen: list[Tensor] = []
    own.register_forward_hook(lambda _, __, output: seen.append(output))
    tokens = _inputs()[0]
    torch.testing.assert_close(own(tokens), theirs(tokens))
    assert len(seen) == len(asked) == 1


@pytest.mark.parametrize("name", ["additive", "bilinear"])
def test_similarities_project_so(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    _needs_onednn()
    asked = _counted(monkeypatch)
    similarity = {"additive": qkv.Additive(D, D, HIDDEN), "bilinear": qkv.Bilinear(D, D)}[name]
    tokens = torch.randn(2, 9, 173, D)
    plain = similarity.score(*similarity.double().prepare(tokens.double(), tokens.double()))
    found = similarity.float()(tokens, tokens)
    assert asked
    torch.testing.assert_close(found, plain.float(), rtol=1e-4, atol=1e-3)
