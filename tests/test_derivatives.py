"""Forward mode, derivatives of derivatives, and what the latter hold at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import grad, hessian, jacfwd, jacrev, jvp

import qkv
from qkv.operators import sdpa
from qkv.operators.fused import ops
from qkv.operators.fused.additive_scores import additive_scores

# torch's own, when its forward mode is first used.
pytestmark = pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated")

SIMILARITIES: dict[str, Any] = {
    "dot": None,
    "cosine": "cosine",
    "gaussian": qkv.Gaussian(1.3),
    "laplacian": "laplacian",
    "epanechnikov": qkv.Epanechnikov(5.0),
    "additive": qkv.Additive(3, 3, 5).double(),
    "sum": qkv.ScaledDot() + 0.5 * qkv.Cosine(),
    "callable": lambda query, key: -(query.unsqueeze(-2) - key.unsqueeze(-3)).abs().sum(-1),
}
MASKS = {"all": None, "causal": qkv.mask.Causal(), "window": qkv.mask.Window(2, 1)}


def _oracle(similarity: Any, mask: Any) -> Callable[..., Tensor]:
    """Eq. 1 as one writes it down."""
    compare = qkv.similarity.as_similarity(similarity)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        scores = compare(query, key)
        if compare.weighting == "proportional":
            scores = scores.log()
        if mask is not None:
            ones = torch.ones(scores.shape[-2:], dtype=torch.bool)
            band = ones.tril() if mask is MASKS["causal"] else ones.triu(-2).tril(1)
            scores = scores.masked_fill(~band, -torch.inf)
        return scores.softmax(-1) @ value

    return attend


def _tokens() -> tuple[Tensor, ...]:
    return torch.randn(3, 2, 5, 3, dtype=torch.float64).unbind()


@pytest.mark.parametrize("mask", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("similarity", SIMILARITIES.values(), ids=SIMILARITIES)
def test_tangents_and_second_derivatives(similarity: Any, mask: Any) -> None:
    query, key, value = _tokens()
    tangents = torch.randn(3, 2, 5, 3, dtype=torch.float64).unbind()

    def attend(*tokens: Tensor) -> Tensor:
        return qkv.attend(*tokens, similarity=similarity, mask=mask)

    oracle = _oracle(similarity, mask)
    found = jvp(attend, (query, key, value), tangents)
    torch.testing.assert_close(found, jvp(oracle, (query, key, value), tangents))

    def total(of: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda query: of(query, key, value).square().sum()

    twice = jacrev(jacrev(total(oracle)))(query)
    torch.testing.assert_close(jacrev(jacrev(total(attend)))(query), twice)
    torch.testing.assert_close(hessian(total(attend))(query), twice)


def test_jacobians_and_gradients_of_tangents_of_the_default() -> None:
    query, key, value = _tokens()
    oracle = _oracle(None, None)

    def of(attend: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        return lambda query: attend(query, key, value)

    torch.testing.assert_close(jacfwd(of(qkv.attend))(query), jacrev(of(oracle))(query))
    norm = [
        grad(lambda x, f=f: jvp(of(f), (x,), (value,))[1].square().sum())(query)
        for f in (qkv.attend, oracle)
    ]
    torch.testing.assert_close(*norm)
    with forward_ad.dual_level():  # without torch.func
        dual = forward_ad.make_dual(query, value)
        tangent = forward_ad.unpack_dual(qkv.attend(dual, key, value)).tangent
        streamed = qkv.attend(dual, key, value, operator="streamed")
        assert tangent is not None
        torch.testing.assert_close(tangent, forward_ad.unpack_dual(streamed).tangent)
    torch.testing.assert_close(tangent, jvp(of(oracle), (query,), (value,))[1])


@pytest.mark.parametrize("reach", [1.0, 60.0], ids=["moderate", "extreme"])
def test_written_out_derivatives_of_additive_scores(reach: float) -> None:
    tensors = [
        (reach * torch.randn(shape, dtype=torch.float64)).requires_grad_()
        for shape in ((2, 1, 5, 3), (7, 3), (3,))
    ]
    query, key, weight = tensors
    plain = torch.tanh(query.unsqueeze(-2) + key.unsqueeze(-3)) @ weight
    torch.testing.assert_close(additive_scores(*tensors), plain)
    if reach == 1.0:
        assert torch.autograd.gradcheck(additive_scores, tensors)
        assert torch.autograd.gradgradcheck(additive_scores, tensors)


MASKED = [None, qkv.mask.Causal(), qkv.mask.Window(3, 2), "rows", "row"]


@pytest.mark.parametrize("mask", MASKED, ids=str)
@pytest.mark.parametrize("name", ["dot", "additive", "laplacian"])
def test_second_derivatives_in_tiles(name: str, mask: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, "TILE_BYTES", 1_000)  # a row or two
    if mask in ("rows", "row"):
        rows = 11 if mask == "rows" else 1
        mask = torch.randn(rows, 7, dtype=torch.float64).masked_fill(
            torch.rand(7) < 0.3, -torch.inf
        )
    tokens = [torch.randn(2, n, 3, dtype=torch.float64, requires_grad=True) for n in (11, 7, 7)]
    upstream = [torch.randn_like(x) for x in tokens]

    def product(operator: str) -> tuple[Tensor, ...]:
        """A Hessian times `upstream`."""
        answer = qkv.attend(*tokens, similarity=SIMILARITIES[name], mask=mask, operator=operator)
        firsts = torch.autograd.grad(answer.square().sum(), tokens, create_graph=True)
        inner = sum((first * up).sum() for first, up in zip(firsts, upstream, strict=True))
        return torch.autograd.grad(inner, tokens)  # type: ignore[arg-type]

    own = "fused"
    if name == "dot":
        own = "sdpa"
        monkeypatch.setattr(sdpa, "TILE_BYTES", 300)
    torch.testing.assert_close(product(own), product("dense"))
