"""What users call, and what they are told when they get it wrong."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import qkv


@pytest.mark.parametrize("shape", [(7, 5), (3, 7, 5), (2, 3, 7, 5), (2, 3, 2, 7, 5)])
@pytest.mark.parametrize("causal", [False, True])
def test_agrees_with_torch(shape: tuple[int, ...], causal: bool) -> None:
    query, key, value = (torch.randn(shape, dtype=torch.float64) for _ in range(3))
    reference = F.scaled_dot_product_attention(query, key, value, is_causal=causal)
    mask = qkv.mask.Causal() if causal else None
    torch.testing.assert_close(qkv.attend(query, key, value, mask=mask), reference)


def test_agrees_with_torch_on_masks() -> None:
    query, key, value = (torch.randn(2, 3, 7, 5, dtype=torch.float64) for _ in range(3))
    boolean = torch.rand(2, 1, 7, 7) > 0.3
    boolean[..., 0] = True
    floating = torch.randn(3, 7, 7, dtype=torch.float64)
    for mask in (boolean, floating):
        reference = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        torch.testing.assert_close(qkv.attend(query, key, value, mask=mask), reference)


def test_numpy_in_numpy_out() -> None:
    rng = np.random.default_rng(0)
    query, key, value = rng.normal(size=(3, 2, 7, 5)).astype(np.float32)
    answer = qkv.attend(query, key, value, mask=np.tri(7, dtype=bool))
    assert isinstance(answer, np.ndarray)
    assert answer.dtype == np.float32
    tensors = [torch.from_numpy(x) for x in (query, key, value)]
    np.testing.assert_allclose(answer, qkv.attend(*tensors, mask=qkv.mask.Causal()), rtol=1e-5)
    key.flags.writeable = False
    backwards = qkv.attend(query, key[:, ::-1], value[:, ::-1])
    np.testing.assert_allclose(backwards, qkv.attend(query, key, value), rtol=1e-5, atol=1e-6)
    assert isinstance(qkv.weights(query, key), np.ndarray)


def test_a_hard_look_up_is_one_hot() -> None:
    key = np.array([[11.0], [13.0], [17.0]])
    major = np.eye(3)
    assert (qkv.attend(np.array([[13.0]]), key, major, similarity="equal") == [[0, 1, 0]]).all()
    assert (qkv.attend(np.array([[12.0]]), key, major, similarity="equal") == 0).all()


def test_self_attention_formula_of_the_text() -> None:
    """S = softmax(QKᵀ/√d_Q) V lies in R^(n×d_V)."""
    query, key, value = torch.randn(7, 3), torch.randn(7, 3), torch.randn(7, 5)
    plain = torch.softmax(query @ key.T / 3**0.5, dim=-1) @ value
    torch.testing.assert_close(qkv.attend(query, key, value), plain)


def test_weights_of_some_rows_keep_their_place_in_the_mask() -> None:
    query = torch.randn(2, 7, 5)
    whole = qkv.weights(query, query, mask=qkv.mask.Causal())
    some = qkv.weights(query, query, mask=qkv.mask.Causal(), rows=slice(3, 5))
    torch.testing.assert_close(some, whole[:, 3:5])
    assert qkv.weights(query, query, rows=slice(-2, None)).shape == (2, 2, 7)
    bias = torch.randn(7, 7)
    whole = qkv.weights(query, query, mask=bias)
    some = qkv.weights(query, query, mask=bias, rows=slice(1, 2))
    torch.testing.assert_close(some, whole[:, 1:2])


def test_a_tensor_that_a_callable_closes_over_gets_its_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from qkv.operators import streamed

    monkeypatch.setattr(streamed, "TILE_BYTES", 100)
    leaf = torch.randn(5, requires_grad=True)
    shift = leaf * 2  # not a leaf: its own graph must survive the tiles
    query, key, value = torch.randn(3, 7, 5).unbind()

    def similarity(query: torch.Tensor, key: torch.Tensor) -> torch.Tensor:
        return (query + shift) @ key.mT

    gradients = []
    for operator in ("dense", "streamed"):
        answer = qkv.attend(query, key, value, similarity=similarity, operator=operator)
        gradients.append(torch.autograd.grad(answer.square().sum(), leaf, retain_graph=True)[0])
    torch.testing.assert_close(*gradients)


GOOD: dict[str, Any] = {
    "query": torch.randn(2, 3, 64),
    "key": torch.randn(2, 7, 64),
    "value": torch.randn(2, 7, 5),
}
MISTAKES: list[tuple[dict[str, Any], type[Exception], str]] = [
    (
        {"key": torch.randn(2, 7, 32)},
        ValueError,
        "key must have shape (..., m, 64) to match query; got (2, 7, 32)",
    ),
    (
        {"value": torch.randn(2, 6, 5)},
        ValueError,
        "value must have shape (..., 7, d_v) to match key; got (2, 6, 5)",
    ),
    (
        {"query": torch.randn(64)},
        ValueError,
        "query must have at least two axes, (..., rows, dimensions); got shape (64,)",
    ),
    (
        {"query": torch.randn(3, 3, 64)},
        ValueError,
        "the leading axes of query (3, 3, 64), key (2, 7, 64) and value (2, 7, 5) must broadcast",
    ),
    (
        {"key": torch.randn(2, 7, 64).double()},
        TypeError,
        "key must be torch.float32 to match query; got torch.float64",
    ),
    (
        {"query": torch.ones(2, 3, 64, dtype=torch.int64)},
        TypeError,
        "query must be floating point; got torch.int64",
    ),
    (
        {"value": torch.randn(2, 7, 5, device="meta")},
        ValueError,
        "value must be on cpu to match query; got meta",
    ),
    (
        {"value": np.zeros((2, 7, 5))},
        TypeError,
        "query, key, value must be all torch tensors or all NumPy arrays; "
        "got query Tensor, key Tensor, value ndarray",
    ),
    (
        {"similarity": "gausian"},
        ValueError,
        "similarity must be one of dot, scaled_dot, cosine, euclidean, gaussian, laplacian, "
        "boxcar, triangular, epanechnikov, biweight, tricube, equal; got 'gausian'; did you mean "
        "'gaussian'?",
    ),
    (
        {"similarity": 3},
        TypeError,
        "similarity must be a qkv.Similarity, a name or a callable (query, key) -> scores; got int",
    ),
    (
        {"similarity": lambda query, key: (query @ key.mT).sum(0)},
        ValueError,
        "similarity must return scores of shape (2, 3, 7) for query (2, 3, 64) and key "
        "(2, 7, 64); got (3, 7)",
    ),
    (
        {"similarity": lambda query, key: 1.0},
        TypeError,
        "similarity must return a tensor; got float",
    ),
    (
        {"similarity": qkv.Bilinear(5, 64)},
        ValueError,
        "query must have shape (..., n, 5) to match Bilinear; got (2, 3, 64)",
    ),
    (
        {"similarity": qkv.Additive(64, 5, 3)},
        ValueError,
        "key must have shape (..., m, 5) to match Additive; got (2, 7, 64)",
    ),
    (
        {"similarity": qkv.Gated(64, 5)},
        ValueError,
        "key must have shape (..., m, 5) to match Gated; got (2, 7, 64)",
    ),
    (
        {"similarity": qkv.Gaussian([1.0, 2.0])},
        ValueError,
        "bandwidth has 2 entries, one for each dimension; key has 64",
    ),
    (
        {"mask": torch.ones(2, 4, 7, dtype=torch.bool)},
        ValueError,
        "mask must broadcast to (..., n, m) = (2, 3, 7); got (2, 4, 7)",
    ),
    (
        {"mask": torch.ones(1, 1, 3, 7, dtype=torch.bool)},
        ValueError,
        "mask must broadcast to (..., n, m) = (2, 3, 7); got (1, 1, 3, 7)",
    ),
    (
        {"mask": torch.ones(3, 7, dtype=torch.int32)},
        TypeError,
        "mask must be boolean (True = may attend) or floating (added to the scores); "
        "got torch.int32",
    ),
    (
        {"mask": "causal"},
        TypeError,
        "mask must be a qkv.mask object, a boolean or floating tensor or a function of positions; "
        "got str",
    ),
    (
        {"mask": torch.ones(3, 7, dtype=torch.bool, device="meta")},
        ValueError,
        "mask must be on cpu to match query; got meta",
    ),
    (
        {"mask": qkv.mask.Lengths([1, 2, 3])},
        ValueError,
        "mask Lengths must match the first leading axes (2,); got shape (3,)",
    ),
    ({"dropout": 1.0}, ValueError, "dropout must be at least 0 and below 1; got 1.0"),
    ({"dropout": -0.1}, ValueError, "dropout must be at least 0 and below 1; got -0.1"),
    (
        {"operator": "flash"},
        ValueError,
        "operator must be one of topk, lookup, sorted, banded, sdpa, fused, dense, streamed; "
        "got 'flash'",
    ),
    (
        {"operator": "sdpa", "similarity": "laplacian"},
        ValueError,
        "operator 'sdpa' does not support this input: Laplacian is not a dot product; "
        "'fused' can, in 4.2 MB",
    ),
    (
        {"operator": "sdpa", "mask": qkv.mask.TopK(2)},
        ValueError,
        "operator 'sdpa' does not support this input: TopK(2) ranks scores, which PyTorch's kernel "
        "does not return; 'dense' can, in 1.3 kB",
    ),
]


@pytest.mark.parametrize(("change", "kind", "text"), MISTAKES, ids=[m[2][:50] for m in MISTAKES])
def test_mistakes_get_one_clear_sentence(
    change: dict[str, Any], kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=f"^{re.escape(text)}$"):
        qkv.attend(**{**GOOD, **change})


def test_numpy_integers_are_refused() -> None:
    with pytest.raises(TypeError, match=r"^key must be floating point; got int64$"):
        qkv.weights(np.ones((2, 3)), np.ones((2, 3), dtype=np.int64))


def test_rows_must_be_a_plain_slice() -> None:
    with pytest.raises(ValueError, match=r"^rows must be a slice with step 1; got step 2$"):
        qkv.weights(GOOD["query"], GOOD["key"], rows=slice(0, 3, 2))


def test_dense_refuses_what_would_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QKV_MEMORY_BUDGET", "1000")
    text = (
        "operator 'dense' does not support this input: "
        "it would hold 33.3 kB at once, above the budget of 1.0 kB; 'fused' can, in 4.2 MB"
    )
    with pytest.raises(MemoryError, match=f"^{re.escape(text)}$"):
        qkv.attend(**GOOD, similarity=qkv.Additive(64, 64, 64 * 3 + 4), operator="dense")
    text = "weights of 3 queries take 168 B, above the budget of 100 B; rows=slice(0, 1) would fit"
    monkeypatch.setenv("QKV_MEMORY_BUDGET", "100")
    with pytest.raises(MemoryError, match=f"^{re.escape(text)}$"):
        qkv.weights(GOOD["query"], GOOD["key"])
    monkeypatch.setenv("QKV_MEMORY_BUDGET", "much")
    with pytest.raises(ValueError, match=r"^QKV_MEMORY_BUDGET must be a number of bytes"):
        qkv.weights(GOOD["query"], GOOD["key"])
