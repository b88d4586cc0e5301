"""Similarities made of others, against the formula written out pair by pair."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import oracle
import pytest
import torch
from torch import Tensor, nn

import qkv
from qkv.operators import streamed
from qkv.similarity.base import Similarity, widen

BATCH, HEADS, N, M, D, D_V, HIDDEN = 2, 3, 5, 7, 4, 11, 13

SLOPES = [0.5, 1.3, 2.1]


def _inputs(dtype: torch.dtype = torch.float64, scale: float = 0.5) -> list[Tensor]:
    sizes = ((N, D), (M, D), (M, D_V))
    drawn = [torch.randn(BATCH, HEADS, *size, dtype=torch.float64) for size in sizes]
    return [(scale * x).to(dtype) for x in drawn]


def _expected(log_score: Callable[[int], oracle.Score], *tensors: Tensor) -> tuple[Tensor, Tensor]:
    """Answers and log totals, head by head."""
    answers, totals = torch.empty(BATCH, HEADS, N, D_V), torch.empty(BATCH, HEADS, N)
    answers, totals = answers.double(), totals.double()
    for b in range(BATCH):
        for h in range(HEADS):
            own = [x[b, h].double().tolist() for x in tensors]
            answer, _, total = oracle.attention(*own, log_score(h))
            answers[b, h], totals[b, h] = (
                torch.tensor(x, dtype=torch.float64) for x in (answer, total)
            )
    return answers, totals


def _log(kernel: float) -> float:
    return math.log(kernel) if kernel > 0 else -math.inf


def _kernel(name: str, width: float) -> Callable[[Any, Any], float]:
    return lambda q, k: math.exp(oracle.kernel(name, width)(q, k))


class Squared(Similarity):
    """A user's own, whose prepared tokens are of a size that nobody is told."""

    def prepare(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        query, key = widen(query), widen(key)
        return torch.cat([query, query**2], -1), torch.cat([key, key**2], -1)

    def score(self, query: Tensor, key: Tensor) -> Tensor:
        return query @ key.mT


def _squared(q: Any, k: Any) -> float:
    return oracle.dot(q, k) + oracle.dot([x * x for x in q], [x * x for x in k])


def _city(query: Tensor, key: Tensor) -> Tensor:
    return -(query.unsqueeze(-2) - key.unsqueeze(-3)).abs().sum(-1)


CASES: dict[str, tuple[Callable[[], Similarity], Callable[[int], oracle.Score]]] = {
    "sum of three": (
        lambda: qkv.Dot() + qkv.Cosine(0.3) + Squared(),
        lambda h: lambda q, k: oracle.dot(q, k) + oracle.cosine(q, k, 0.3) + _squared(q, k),
    ),
    "sum to the right": (
        lambda: Squared() + (qkv.Cosine(0.3) + qkv.Dot()),
        lambda h: lambda q, k: oracle.dot(q, k) + oracle.cosine(q, k, 0.3) + _squared(q, k),
    ),
    "with a callable": (
        lambda: qkv.Euclidean() + _city,
        lambda h: (
            lambda q, k: oracle.euclidean(q, k) - sum(abs(a - b) for a, b in zip(q, k, strict=True))
        ),
    ),
    "a factor for each head": (
        lambda: torch.tensor(SLOPES) * qkv.Dot() + qkv.Euclidean() * 0.5,
        lambda h: (
            lambda q, k: (
                torch.tensor(SLOPES)[h].item() * oracle.dot(q, k) + 0.5 * oracle.euclidean(q, k)
            )
        ),
    ),
    "a temperature for each head": (
        lambda: qkv.ScaledDot().with_temperature(SLOPES),
        lambda h: lambda q, k: oracle.scaled_dot(q, k) / SLOPES[h],
    ),
    "a capped temperature": (
        lambda: (qkv.Cosine().with_temperature(SLOPES) + Squared()).soft_cap(0.7),
        lambda h: (
            lambda q, k: 0.7 * math.tanh((oracle.cosine(q, k) / SLOPES[h] + _squared(q, k)) / 0.7)
        ),
    ),
    "kernels multiplied": (
        lambda: qkv.Gaussian(0.8) * qkv.Boxcar(1.1) * 3,
        lambda h: (
            lambda q, k: (
                _log(3 * _kernel("gaussian", 0.8)(q, k)) + oracle.kernel("boxcar", 1.1)(q, k)
            )
        ),
    ),
    "kernels added": (
        lambda: torch.tensor(SLOPES) * qkv.Laplacian(0.8) + qkv.Epanechnikov(1.5) * 0.3,
        lambda h: (
            lambda q, k: _log(
                torch.tensor(SLOPES)[h].item() * _kernel("laplacian", 0.8)(q, k)
                + 0.3 * _kernel("epanechnikov", 1.5)(q, k)
            )
        ),
    ),
    "a product of sums": (
        lambda: (qkv.Gaussian(0.4) + qkv.Gaussian(2.0)) * qkv.Tricube(1.4),
        lambda h: (
            lambda q, k: (
                _log(_kernel("gaussian", 0.4)(q, k) + _kernel("gaussian", 2.0)(q, k))
                + oracle.kernel("tricube", 1.4)(q, k)
            )
        ),
    ),
    "gaussians multiplied": (
        lambda: qkv.Gaussian(0.8) * qkv.Gaussian(1.2),
        lambda h: (
            lambda q, k: oracle.kernel("gaussian", 0.8)(q, k) + oracle.kernel("gaussian", 1.2)(q, k)
        ),
    ),
}

every_case = pytest.mark.parametrize("name", CASES)


@pytest.fixture(autouse=True)
def _several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "TILE_BYTES", 1)  # so that heads are split off, too


@every_case
@pytest.mark.parametrize("operator", [None, "dense", "streamed", "fused"])
def test_the_answer_is_the_formulas(name: str, operator: str | None) -> None:
    make, log_score = CASES[name]
    query, key, value = _inputs()
    answer, totals = _expected(log_score, query, key, value)
    similarity = make()
    found = qkv.attend(query, key, value, similarity=similarity, operator=operator)
    torch.testing.assert_close(found, answer, rtol=1e-10, atol=1e-11)
    partial = qkv.attend_partial(query, key, value, similarity=similarity, operator=operator)
    torch.testing.assert_close(partial.log_total, totals, rtol=1e-10, atol=1e-11)


@every_case
@pytest.mark.parametrize("operator", ["dense", "streamed", "fused"])
def test_gradients_once_and_twice(name: str, operator: str) -> None:
    similarity = CASES[name][0]()
    tensors = [x[:, :, :3].requires_grad_() for x in _inputs()]

    def function(*tensors: Tensor) -> Tensor:
        return qkv.attend(*tensors, similarity=similarity, operator=operator)

    torch.autograd.gradcheck(function, tensors, fast_mode=True)
    torch.autograd.gradgradcheck(function, tensors, fast_mode=True, atol=1e-4)


@pytest.mark.parametrize("operator", ["dense", "streamed", "sdpa", "banded", "fused"])
def test_learned_factors_and_temperatures_of_heads_get_their_gradients(operator: str) -> None:
    factor = nn.Parameter(torch.tensor(SLOPES, dtype=torch.float64))
    tempered = qkv.ScaledDot().with_temperature(SLOPES, learnable=True).double()
    similarity = factor * (qkv.Dot() + tempered)
    query, key, value = _inputs()
    parameters = list(similarity.parameters())
    assert {id(x) for x in parameters} == {id(factor), id(tempered.temperature.log)}

    def function(*_: Tensor) -> Tensor:
        mask = qkv.mask.Causal()
        return qkv.attend(query, key, value, similarity=similarity, mask=mask, operator=operator)

    torch.autograd.gradcheck(function, parameters, fast_mode=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda: qkv.ScaledDot().with_temperature(SLOPES, learnable=True),
        lambda: qkv.Euclidean().with_temperature(SLOPES, learnable=True),
        lambda: (qkv.Gated(D, D) + qkv.Dot()).with_temperature(SLOPES, learnable=True),
        lambda: qkv.Additive(D, D, HIDDEN).with_temperature(SLOPES, learnable=True),
    ],
)
def test_learned_temperatures_of_heads_that_share_their_keys(make: Callable[[], Any]) -> None:
    similarity = make().double()
    query, key, value = _inputs()
    shared = [x[:, :1].requires_grad_() for x in (key, value)]

    def run(operator: str) -> list[Tensor]:
        answer = qkv.attend(query, *shared, similarity=similarity, operator=operator)
        wanted = [*shared, *similarity.parameters()]
        return [answer, *torch.autograd.grad(answer.square().sum(), wanted)]

    for fused, dense in zip(run("fused"), run("dense"), strict=True):
        torch.testing.assert_close(fused, dense, rtol=1e-9, atol=1e-10)


def test_what_is_a_dot_product_says_so() -> None:
    query, key, value = _inputs(torch.float32)
    for similarity in (
        2 * qkv.Dot(),
        qkv.ScaledDot() + qkv.Cosine(),
        torch.tensor(SLOPES) * (qkv.Dot() + qkv.Cosine()),
        qkv.Gaussian(3.0) * qkv.Gaussian(5.0),
        2.5 * qkv.Euclidean() + qkv.Dot(),
        4 * qkv.Gaussian(3.0),
    ):
        expected = qkv.attend(query, key, value, similarity=similarity, operator="dense")
        found = qkv.attend(query, key, value, similarity=similarity, operator="sdpa")
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
        totals = [
            qkv.attend_partial(query, key, value, similarity=similarity, operator=operator)
            for operator in ("sdpa", "dense")
        ]
        torch.testing.assert_close(totals[0].log_total, totals[1].log_total, rtol=1e-4, atol=1e-4)
    for similarity, reason in (
        (qkv.Dot().soft_cap(3.0), "SoftCapped is not a dot product"),
        (qkv.Gaussian() + qkv.Gaussian(), "the logarithm of a sum of kernels is no dot product"),
        (qkv.Dot() + qkv.Euclidean() + _city, "FromCallable is not a dot product"),
        (torch.tensor(2.0) * qkv.Euclidean(), "a learned multiple of a distance is written out"),
    ):
        with pytest.raises(ValueError, match=reason):
            qkv.attend(query, key, value, similarity=similarity, operator="sdpa")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@every_case
def test_half_types_lose_no_more_than_their_own_digits(name: str, dtype: torch.dtype) -> None:
    make, log_score = CASES[name]
    query, key, value = _inputs(dtype)
    answer, _ = _expected(log_score, query, key, value)
    found = qkv.attend(query, key, value, similarity=make())
    assert found.dtype == dtype
    assert (found - answer).abs().max() < 8 * torch.finfo(dtype).eps


def test_far_from_all_keys_a_mixture_attends_to_the_nearest() -> None:
    key = torch.tensor([[0.0], [10.0]])
    value = torch.tensor([[1.0], [2.0]])
    similarity = 0.5 * qkv.Gaussian(0.1) + 0.5 * qkv.Gaussian(0.2)
    answer = qkv.attend(torch.tensor([[60.0]]), key, value, similarity=similarity)
    assert answer.item() == 2.0


def test_a_query_outside_of_every_kernel_gets_nothing_and_no_nan() -> None:
    query = torch.tensor([[9.0], [0.1]], requires_grad=True)
    key, value = torch.tensor([[0.0], [0.5]]), torch.randn(2, 3)
    for similarity in (qkv.Boxcar() + qkv.Triangular(), qkv.Gaussian() * qkv.Triangular()):
        for operator in ("dense", "streamed"):
            answer = qkv.attend(query, key, value, similarity=similarity, operator=operator)
            (gradient,) = torch.autograd.grad(answer.sum(), query)
            assert (answer[0] == 0).all()
            assert answer[1].isfinite().all()
            assert gradient[0].item() == 0
            assert gradient.isfinite().all()


def test_ranking_key_by_key_leaves_heads_to_others() -> None:
    query, key, value = _inputs()
    similarity = torch.tensor(SLOPES) * qkv.Dot()
    with pytest.raises(ValueError, match="with parameters per head are not supported"):
        qkv.attend(query, key, value, similarity=similarity, mask=qkv.mask.TopK(2), operator="topk")
    found = qkv.attend(query, key, value, similarity=similarity, mask=qkv.mask.TopK(2))
    for head in range(HEADS):
        alone = qkv.attend(
            *(x[:, head] for x in (query, key, value)),
            similarity=SLOPES[head] * qkv.Dot(),
            mask=qkv.mask.TopK(2),
        )
        torch.testing.assert_close(found[:, head], alone, rtol=1e-6, atol=1e-6)


def test_names_read_as_they_are_written() -> None:
    for similarity, text in (
        (qkv.ScaledDot() + 0.5 * qkv.Cosine(), "ScaledDot + 0.5 * Cosine"),
        (2 * (qkv.Dot() + qkv.Cosine()), "2 * (Dot + Cosine)"),
        ((qkv.Dot() + qkv.Cosine()).soft_cap(50.0), "(Dot + Cosine).soft_cap(50)"),
        (qkv.Gaussian() * (qkv.Boxcar() + qkv.Laplacian()), "Gaussian * (Boxcar + Laplacian)"),
        (torch.ones(3) * qkv.Dot(), "tensor (3,) * Dot"),
        (qkv.Dot().with_temperature(2.0), "Dot.with_temperature(2.0)"),
    ):
        assert repr(similarity) == text
    query, key, value = _inputs()
    assert "float64, ScaledDot + Cosine" in str(
        qkv.explain(query, key, value, similarity=qkv.ScaledDot() + qkv.Cosine())
    )


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: qkv.Dot() + qkv.Gaussian(),
            TypeError,
            r"\+ adds scores, or kernels .* Dot has softmax weights and Gaussian proportional ones",
        ),
        (lambda: qkv.Dot() * qkv.Gaussian(), TypeError, r"multiplies kernels, .* Dot has softmax"),
        (lambda: qkv.Dot() + 3, TypeError, r"\+ takes a similarity beside a .* got int"),
        (lambda: qkv.Dot() * "x", TypeError, r"\* takes a similarity beside a .* got str"),
        (lambda: math.inf * qkv.Dot(), ValueError, "a factor must be finite; got inf"),
        (lambda: -1 * qkv.Gaussian(), ValueError, "must be positive, as kernels are; got -1"),
        (lambda: torch.ones(3).long() * qkv.Dot(), TypeError, "must be floating point; got torch"),
        (lambda: qkv.Gaussian().soft_cap(3.0), TypeError, "soft_cap changes scores of softmax"),
        (lambda: qkv.Dot().soft_cap(0.0), ValueError, "cap must be positive and finite; got 0.0"),
        (lambda: qkv.Boxcar().with_temperature(2), TypeError, "Boxcar has proportional ones"),
        (lambda: qkv.Dot().with_temperature(-1.0), ValueError, "temperature must be positive"),
        (
            lambda: torch.ones(5) * qkv.Dot(),
            ValueError,
            r"factor must be one number or one for each head, .* axes \(2, 3\) .* shape \(5,\)",
        ),
        (lambda: qkv.Dot().with_temperature([1.0, 2.0]), ValueError, r"temperature must .* \(2,\)"),
    ],
)
def test_mistakes_get_one_clear_sentence(make: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        qkv.attend(*_inputs(), similarity=make())


def test_layers_and_recordings_take_combinations() -> None:
    layer = qkv.nn.MultiheadAttention(
        12, HEADS, batch_first=True,
        similarity=(0.5 * qkv.Dot() + qkv.Cosine()).with_temperature(1.0, learnable=True),
    )  # fmt: skip
    assert len(list(layer.similarity.parameters())) == HEADS, "a temperature for each head"
    x = torch.randn(2, N, 12)
    layer(x, x, x)[0].sum().backward()
    query, key, value = _inputs()
    similarity = torch.tensor(SLOPES) * qkv.Dot()
    with qkv.record() as calls:
        qkv.attend(query, key, value, similarity=similarity)
    expected = qkv.weights(query, key, similarity=similarity)
    torch.testing.assert_close(calls[0].weights(heads=1), expected[:, 1:2])


@pytest.mark.filterwarnings("default")  # the compiler's own warnings are not ours to mend
@pytest.mark.parametrize("name", ["a capped temperature", "kernels added"])
def test_compiles_into_one_graph(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streamed, "TILE_BYTES", 10_000)
    similarity = CASES[name][0]().float()
    tensors = [x.requires_grad_() for x in _inputs(torch.float32)]

    def function(*tensors: Tensor) -> Tensor:
        return qkv.attend(*tensors, similarity=similarity, operator="streamed")

    torch._dynamo.reset()
    found, expected = torch.compile(function, fullgraph=True)(*tensors), function(*tensors)
    torch.testing.assert_close(found, expected)
    for own, other in zip(
        torch.autograd.grad(found.sum(), tensors),
        torch.autograd.grad(expected.sum(), tensors),
        strict=True,
    ):
        torch.testing.assert_close(own, other)


def test_work_is_done_once_for_each_token() -> None:
    """Parts that take tokens as they are share one copy; projections are made in `prepare`."""
    query, key, _ = _inputs()
    shared = qkv.Dot() + qkv.Euclidean()
    assert [x.shape[-1] for x in shared.prepare(query, key)] == [D, D]
    learned = qkv.Dot() + qkv.Additive(D, D, HIDDEN).double() + qkv.Gated(D, D).double()
    assert [x.shape[-1] for x in learned.prepare(query, key)] == [2 * D + HIDDEN + 1] * 2
    torch.testing.assert_close(learned.score(*learned.prepare(query, key)), learned(query, key))


@pytest.mark.parametrize(
    "similarity",
    [
        qkv.ScaledDot().soft_cap(2.0),
        qkv.Gaussian(5.0) * qkv.Laplacian(7.0),
        qkv.ScaledDot() + qkv.Euclidean(),
        qkv.Cosine().with_temperature(0.5).soft_cap(3.0),
    ],
    ids=["capped", "product", "sum", "tempered"],
)
def test_kernels_of_combinations_are_derived(similarity: qkv.Similarity) -> None:
    tokens = [torch.randn(2, size, 13, requires_grad=True) for size in (71, 89, 89)]
    plan = qkv.explain(*tokens, similarity=similarity)
    assert "fused" not in plan.rejected or plan.rejected["fused"].startswith("takes about")
    answers, gradients = [], []
    for operator in ("fused", "dense"):
        answer = qkv.attend(*tokens, similarity=similarity, operator=operator)
        answers.append(answer)
        gradients.append(torch.autograd.grad(answer.square().sum(), tokens))
    torch.testing.assert_close(*answers, rtol=1e-4, atol=1e-5)
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
