"""Formulas that someone writes: what is compiled of them, what is not, and that it is right."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch
from formulas import Formula, assert_agree, difference, draw_tokens
from torch import Tensor, nn
from torch.nn import functional as F

import qkv
from qkv.formula import PROGRAMS, forms, probes
from qkv.similarity.base import FusedForm, derived_form


def test_gradients_of_all_a_formula_closes_over_once_and_twice() -> None:
    width = torch.rand(3, dtype=torch.float64).add(0.5).requires_grad_()
    temperature = torch.tensor([[[0.4]], [[0.9]]], dtype=torch.float64, requires_grad=True)

    def formula(query: Tensor, key: Tensor) -> Tensor:
        squared = (difference(query, key) / width).square().sum(-1)
        return torch.log1p(squared) / -temperature.exp() + torch.tanh(query @ key.mT)

    query, key, value = (x.requires_grad_() for x in draw_tokens(3, 5, 3, 2))

    def function(query: Tensor, key: Tensor, value: Tensor, *_: Tensor) -> Tensor:
        return qkv.attend(query, key, value, similarity=formula, operator="fused")

    arguments = (query, key, value, width, temperature)
    torch.autograd.gradcheck(function, arguments, fast_mode=True)
    torch.autograd.gradgradcheck(function, arguments, fast_mode=True, atol=1e-4)


@pytest.mark.parametrize(
    "formula",
    [lambda q, k: -(torch.cdist(q, k) ** 2), lambda q, k: _half_squared(_norm(q, k))],
)
def test_a_square_takes_no_root_of_what_is_squared(formula: Formula) -> None:
    tokens = draw_tokens(5, 23, 4, 2)
    tokens[1][:, 0] = tokens[0][:, 0]  # where a root would have no slope
    form = derived_form(formula, formula, *tokens[:2], proportional=False)
    assert isinstance(form, FusedForm)
    assert "root" not in {node.op for node in PROGRAMS[form.kind].order}
    assert_agree(formula, tokens)


def _half_squared(u: Tensor) -> Tensor:
    return -0.5 * u * u


def _norm(query: Tensor, key: Tensor) -> Tensor:
    return torch.linalg.vector_norm(difference(query, key), dim=-1)


def test_ties_share_a_slope_as_in_torch() -> None:
    tokens = draw_tokens(4, 6, 5)
    tokens[0] = tokens[0].round()
    tokens[1] = tokens[1].round()
    assert_agree(lambda q, k: -difference(q, k).abs().amax(-1), tokens)
    assert_agree(lambda q, k: torch.maximum(q.unsqueeze(-2), k.unsqueeze(-3)).sum(-1), tokens)


def test_a_constant_that_changes_is_never_stale() -> None:
    tokens = draw_tokens(9, 11, 3)
    state: dict[str, Any] = {"scale": 0.5, "width": torch.ones(3).double(), "bent": False}

    def formula(query: Tensor, key: Tensor) -> Tensor:
        distance = (difference(query, key) * state["width"]).abs().sum(-1) * -state["scale"]
        return distance.tanh() if state["bent"] else distance

    for change in (
        {},
        {"scale": 2.0},
        {"width": torch.rand(3).double()},
        {"bent": True},
        {"scale": 3},
    ):
        state |= change
        assert_agree(formula, tokens)
    state["width"] = torch.rand(3).double().requires_grad_()
    assert_agree(formula, tokens, [state["width"]])


def test_constants_of_tokens_that_are_equal_once_may_differ_later() -> None:
    tokens, factors = draw_tokens(9, 11, 3), [0.5, 0.5]

    def formula(query: Tensor, key: Tensor) -> Tensor:
        first, second = (difference(query * factor, key) for factor in factors)
        return -first.abs().sum(-1) - second.square().sum(-1)

    assert_agree(formula, tokens)
    factors[1] = 2.0
    assert_agree(formula, tokens)


def test_in_place_operations_on_pairs_and_shapes_that_are_asked_for() -> None:
    def formula(query: Tensor, key: Tensor) -> Tensor:
        n, d = query.shape[-2:]
        pairs = query.reshape(-1, n, 1, d) - key.reshape(-1, 1, key.size(-2), d)
        assert pairs.ndim == 4
        assert pairs.shape[2] == key.shape[-2]
        pairs.abs_().mul_(d**-0.5)
        return -pairs.sum(-1).view(*query.shape[:-1], key.shape[-2])

    def plain(query: Tensor, key: Tensor) -> Tensor:
        return -difference(query, key).abs().sum(-1) * 3**-0.5

    tokens = draw_tokens(9, 11, 3, 2)
    found = qkv.attend(*tokens, similarity=formula, operator="fused")
    torch.testing.assert_close(found, qkv.attend(*tokens, similarity=plain, operator="dense"))


@pytest.mark.parametrize(
    "formula",
    [
        lambda q, k: torch.einsum("bid,bjd->bij", q, k) * 0.3,
        lambda q, k: F.cosine_similarity(q.unsqueeze(-2), k.unsqueeze(-3), dim=-1),
        lambda q, k: 5 * torch.tanh(F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT / 5),
        lambda q, k: -torch.cdist(q, k, p=1) - torch.cdist(q, k, p=2.0).sqrt(),
        lambda q, k: -torch.log1p(torch.cdist(q, k) ** 2 / 4),
        lambda q, k: -torch.acosh(1 + difference(q / 9, k / 9).square().sum(-1)),
        lambda q, k: q.norm(dim=-1)[..., :, None] * k.norm(dim=-1)[..., None, :],
        lambda q, k: q[..., :2] @ k[..., 1:3].mT + (q @ k.mT).clamp(max=0.5),
    ],
)
def test_formulas_as_people_write_them(formula: Formula) -> None:
    assert_agree(formula, draw_tokens(7, 23, 5, 2))


def test_sums_of_tanh_take_the_factorised_kernel() -> None:
    torch.manual_seed(0)
    to_query, to_key = nn.Linear(5, 19).double(), nn.Linear(5, 19).double()
    out = nn.Linear(19, 1).double()

    def hidden(query: Tensor, key: Tensor) -> Tensor:
        return to_query(query).unsqueeze(-2) + to_key(key).unsqueeze(-3)

    parameters = [*to_query.parameters(), *to_key.parameters(), *out.parameters()]
    for formula in (
        lambda q, k: out(torch.tanh(hidden(q, k))).squeeze(-1),
        lambda q, k: -2.5 * (torch.sigmoid(hidden(q, k)) * out.weight[0]).sum(-1),
    ):
        tokens = draw_tokens(7, 23, 5, 2)
        form = derived_form(formula, formula, *tokens[:2], proportional=False)
        assert isinstance(form, FusedForm)
        assert form.kind == "additive"
        assert_agree(formula, tokens, parameters)


REFUSED: dict[str, tuple[Formula, str]] = {
    "over keys": (lambda q, k: q @ (k - k.mean(-2, keepdim=True)).mT, "mean over all keys"),
    "softmax": (lambda q, k: (q @ k.mT).softmax(-1), "softmax of a pair is not supported"),
    "sum of pairs": (lambda q, k: q @ k.mT - (q @ k.mT).sum(-1, keepdim=True), "sum over all keys"),
    "along keys": (lambda q, k: q @ k.softmax(-2).mT, "makes a score depend on other keys"),
    "along queries": (lambda q, k: q.cumsum(-2) @ k.mT, "cumsum (test_formula.py:"),
    "sort": (lambda q, k: difference(q, k).sort(-1).values[..., 0], "sort of a pair is not supp"),
    "branch": (lambda q, k: q @ k.mT if k.sum() > 0 else k @ q.mT, "sum over all keys"),
    "look": (lambda q, k: q @ k.mT * float(k[..., 0]), "it looks at numbers by float"),
    "random": (lambda q, k: F.dropout(q, 0.5) @ k.mT, "it draws random numbers"),
    "in place": (lambda q, k: q.mul_(2) @ k.mT, "it writes to its tokens by mul_"),
    "detached": (lambda q, k: (q @ k.mT).detach(), "detach of a pair is not supported"),
    "positions": (lambda q, k: q @ k.mT + torch.ones(q.shape[-2], k.shape[-2]).tril(), "as a mask"),
    "mistaken": (lambda q, k: (q @ k.mT).nothing, "has no attribute 'nothing' (test_formula.py:"),
    "again": (lambda q, k: (difference(q, k) - (q @ k.mT).unsqueeze(-1)).abs().sum(-1), "again"),
    "tokens only": (lambda q, k: (q * 2).sum(-1, keepdim=True), "do not depend on both"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_compiled_says_why_and_where(name: str) -> None:
    formula, reason = REFUSED[name]
    query, key, value = draw_tokens(5, 7, 4, 2)
    with pytest.raises(ValueError, match="operator 'fused' does not support this input") as caught:
        qkv.attend(query, key, value, similarity=formula, operator="fused")
    assert reason in str(caught.value)
    if reason.endswith(("supported", "keys")):
        assert "(test_formula.py:" in str(caught.value), "the user's own line"
        assert "lambda q, k:" in str(caught.value)
    if name in ("softmax", "sort", "over keys"):  # others answer
        found = qkv.attend(query, key, value, similarity=formula)
        plain = torch.softmax(formula(query, key), -1) @ value
        torch.testing.assert_close(found, plain)


class _Straight(torch.autograd.Function):
    """The identity with a slope of its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 1.0

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        return grad * 3.0


def test_a_gradient_of_someones_own_is_not_replaced() -> None:
    def formula(query: Tensor, key: Tensor) -> Tensor:
        return _Straight.apply(query @ key.mT)  # type: ignore[no-any-return,no-untyped-call]

    tokens = draw_tokens(5, 7, 4)
    with pytest.raises(ValueError, match="the formula has no kernel"):
        qkv.attend(*tokens, similarity=formula, operator="fused")


def test_explain_tells_of_the_kernel() -> None:
    def city_block(query: Tensor, key: Tensor) -> Tensor:
        return -difference(query, key).abs().sum(-1)

    small = torch.randn(6, 5)
    plan = qkv.explain(small, small, small, similarity=city_block)
    assert plan.operator == "dense"
    assert plan.rejected["fused"].startswith("a formula is compiled for 131,072 features of pairs")
    query = torch.randn(1024, 32)
    plan = qkv.explain(query, query, query, similarity=city_block)
    assert plan.operator == "fused"
    assert (
        "a kernel was derived from city_block: 2 operations for a feature of a pair" in plan.reason
    )
    plan = qkv.explain(query, query, query, similarity=lambda q, k: (q @ k.mT).cumsum(-1))
    assert plan.operator == "streamed"
    assert "cumsum of a pair is not supported (test_formula.py:" in plan.rejected["fused"]


class _Cauchy(qkv.Similarity):
    weighting = "proportional"

    def __init__(self, shift: float) -> None:
        super().__init__()
        self.shift = shift

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return self.shift + 1 / (1 + torch.cdist(query, key).square())


def test_kernels_that_are_negative_show() -> None:
    tokens = draw_tokens(5, 30, 4)
    assert_agree(_Cauchy(0.0), tokens)
    answer = qkv.attend(*tokens, similarity=_Cauchy(-0.5), operator="fused")
    assert answer.isnan().all()


def test_heads_many_and_sizes_that_probes_have_too() -> None:
    """Leading axes are shortened on probes unless a parameter has them; 11, 13, 17 are primes."""
    slopes = torch.rand(17, 1, 1, dtype=torch.float64, requires_grad=True)
    formula = lambda q, k: -slopes * difference(q, k).abs().sum(-1)  # noqa: E731
    assert_agree(formula, draw_tokens(13, 11, 3, 2, 17), [slopes])
    assert max(probes.PRIMES) > 17


def test_the_same_formula_in_another_process_needs_no_numba() -> None:
    """Compiled in one, loaded in the other, where nothing can be compiled."""
    code = """
import sys, torch, qkv
import qkv.formula.compiled as compiled
if sys.argv[1] == "again":
    sys.modules["numba"] = compiled.object_code = None
x = torch.linspace(-1, 1, 90, dtype=torch.float64).view(30, 3).requires_grad_()
width = torch.tensor([0.5, 1.5, 2.5], dtype=torch.float64, requires_grad=True)
f = lambda q, k: -((q[:, None] - k[None]) * width).abs().pow(1.25).sum(-1).sinh()
answer = qkv.attend(x, x, x, similarity=f, operator="fused")
answer.square().sum().backward()
print(answer.sum().item(), x.grad.sum().item(), width.grad.sum().item())
"""
    runs = []
    for which in ("first", "again"):
        command = [sys.executable, "-c", code, which]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        runs.append([float(x) for x in done.stdout.split()])
    assert runs[0] == runs[1]


def test_traces_are_bounded() -> None:
    assert len(forms._TRACES) <= forms.MOST_TRACES
