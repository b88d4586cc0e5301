"""Similarities as modules: formulas, parameters, mistakes."""

from __future__ import annotations

import copy
import math

import oracle
import pytest
import torch
from cases import SIMILARITIES, Case, inputs

import qkv
from qkv.similarity import as_similarity


@pytest.mark.parametrize("case", SIMILARITIES, ids=lambda case: case.name)
def test_calling_a_similarity_gives_the_plain_formula(case: Case) -> None:
    similarity = case.build()
    plain = as_similarity(similarity)
    query, key, _ = inputs(case)
    scores = plain(query, key)
    log_score = case.log_score(similarity)
    proportional = plain.weighting == "proportional"
    for b in range(2):
        for i in range(query.shape[1]):
            for j in range(key.shape[1]):
                expected = log_score(query[b, i].tolist(), key[b, j].tolist())
                expected = math.exp(expected) if proportional else expected
                assert scores[b, i, j].item() == pytest.approx(expected, rel=1e-12, abs=1e-14)


@pytest.mark.parametrize(
    ("kernel", "formula"),
    [
        (qkv.Gaussian, lambda u: math.exp(-u * u / 2)),
        (qkv.Boxcar, lambda u: 1.0 if u <= 1 else 0.0),
        (qkv.Triangular, lambda u: max(0.0, 1 - u)),
        (qkv.Epanechnikov, lambda u: max(0.0, 1 - u * u)),
        (qkv.Laplacian, lambda u: math.exp(-u)),
    ],
)
def test_kernels_of_equation_5(kernel: type, formula: object) -> None:
    for distance in (0.0, 0.3, 0.999, 1.0, 1.001, 2.5):
        score = kernel(bandwidth=1.0)(
            torch.zeros(1, 1, dtype=torch.float64), torch.tensor([[distance]], dtype=torch.float64)
        )
        assert score.item() == pytest.approx(formula(distance), rel=1e-12)
        wide = kernel(bandwidth=2.0)(
            torch.zeros(1, 1, dtype=torch.float64),
            torch.tensor([[2 * distance]], dtype=torch.float64),
        )
        assert wide.item() == pytest.approx(formula(distance), rel=1e-12)


def test_equation_6_with_its_sign_put_right() -> None:
    """−‖q − k‖² = −‖q‖² − ‖k‖² + 2qᵀk."""
    q, k = torch.randn(3, 5, dtype=torch.float64), torch.randn(7, 5, dtype=torch.float64)
    expanded = -q.square().sum(-1, keepdim=True) - k.square().sum(-1) + 2 * q @ k.T
    torch.testing.assert_close(qkv.Euclidean()(q, k), expanded)


def test_equation_7_keys_of_one_length_make_distance_a_dot_product() -> None:
    query = torch.randn(3, 5, dtype=torch.float64)
    key = torch.nn.functional.normalize(torch.randn(7, 5, dtype=torch.float64), dim=-1)
    torch.testing.assert_close(
        qkv.weights(query, key, similarity="euclidean"),
        qkv.weights(2 * query, key, similarity="dot"),
    )


def test_far_from_all_keys_a_gaussian_attends_to_the_nearest() -> None:
    key = torch.tensor([[0.0], [1.0], [2.0]])
    weights = qkv.weights(torch.tensor([[1e6]]), key, similarity="gaussian")
    assert weights.tolist() == [[0.0, 0.0, 1.0]]


@pytest.mark.parametrize("bandwidth", [0.0, -1.0, math.nan, math.inf, [1.0, 0.0]])
def test_a_bandwidth_must_be_positive(bandwidth: object) -> None:
    bad = bandwidth[1] if isinstance(bandwidth, list) else bandwidth
    with pytest.raises(ValueError, match=rf"^bandwidth must be positive and finite; got {bad}$"):
        qkv.Gaussian(bandwidth=bandwidth)


def test_other_mistakes_in_making_one() -> None:
    with pytest.raises(ValueError, match=r"^temperature must be positive and finite; got 0.0$"):
        qkv.Cosine(temperature=0)
    with pytest.raises(ValueError, match=r"^bandwidth must be a number or one .* \(1, 1\)$"):
        qkv.Boxcar(bandwidth=[[1.0]])
    with pytest.raises(ValueError, match=r"^base must be a similarity with softmax weights"):
        qkv.Gated(3, 3, base=qkv.Gaussian())
    with pytest.raises(ValueError, match=r"^scale must be finite; got nan$"):
        qkv.ScaledDot(scale=math.nan)


@pytest.mark.parametrize("case", [c for c in SIMILARITIES if c.learned], ids=lambda c: c.name)
def test_learned_parameters_train_and_save(case: Case) -> None:
    similarity = case.build()
    query, key, value = inputs(case)
    optimizer = torch.optim.Adam(similarity.parameters(), lr=0.05)
    target = torch.randn_like(qkv.attend(query, key, value, similarity=similarity))
    losses = []
    for _ in range(20):
        loss = (qkv.attend(query, key, value, similarity=similarity) - target).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    other = case.build()
    other.load_state_dict(similarity.state_dict())
    copied = copy.deepcopy(similarity)
    scores = similarity(query, key)
    torch.testing.assert_close(other(query, key), scores)
    torch.testing.assert_close(copied(query, key), scores)


def test_a_learned_bandwidth_stays_positive() -> None:
    similarity = qkv.Gaussian(bandwidth=0.01, learnable=True)
    optimizer = torch.optim.SGD(similarity.parameters(), lr=100.0)
    query, key = torch.randn(3, 2), torch.randn(5, 2)
    for _ in range(5):
        optimizer.zero_grad()
        qkv.attend(query, key, torch.randn(5, 1), similarity=similarity).sum().backward()
        optimizer.step()
        assert (similarity.bandwidth(key) > 0).all()


def test_zero_vectors_have_cosine_zero() -> None:
    query = torch.zeros(1, 3, requires_grad=True)
    weights = qkv.weights(query, torch.randn(5, 3), similarity="cosine")
    torch.testing.assert_close(weights, torch.full((1, 5), 0.2))
    weights.sum().backward()
    assert query.grad.isfinite().all()


def test_a_distance_of_zero_has_a_finite_gradient() -> None:
    for name in ("laplacian", "triangular", "epanechnikov", "boxcar", "gaussian"):
        x = torch.randn(3, 2, requires_grad=True)
        qkv.attend(x, x, torch.randn(3, 1), similarity=name).sum().backward()
        assert x.grad.isfinite().all(), name


def test_names_read_well() -> None:
    assert repr(qkv.ScaledDot(scale=0.5)) == "ScaledDot(scale=0.5)"
    assert "query_dim=3, key_dim=5" in repr(qkv.Bilinear(3, 5))
    assert "0.5" in repr(qkv.Gaussian(0.5))
    assert oracle.cosine([0.0], [1.0]) == 0.0
