"""Grouped heads: a head of keys and values serves several of queries, without a copy."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import qkv
from qkv import mask as masks
from qkv.benchmarks.measure import can_measure_memory, peak_extra_bytes

BATCH, HEADS, KEY_HEADS, N, M, D, D_V = 2, 6, 3, 5, 7, 4, 11


def tokens(n: int = N, m: int = M) -> list[Tensor]:
    shapes = ((HEADS, n, D), (KEY_HEADS, m, D), (KEY_HEADS, m, D_V))
    return [torch.randn(BATCH, *shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def repeated(query: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
    """The definition: head h of the queries has head h // 2 of the keys."""
    own = torch.arange(HEADS) // (HEADS // KEY_HEADS)
    return query, *(x[..., own, :, :] for x in others)


def per_head(query: Tensor, key: Tensor) -> Tensor:
    return -(query.unsqueeze(-2) - key.unsqueeze(-3)).abs().sum(-1)


SIMILARITIES: dict[str, Any] = {
    "dot": lambda: None,
    "additive": lambda: qkv.Additive(D, D, 13).double(),
    "gaussian": lambda: qkv.Gaussian(0.7),
    "epanechnikov": lambda: qkv.Epanechnikov(2.5),
    "gated": lambda: qkv.Gated(D, D, qkv.ScaledDot()).double(),
    "formula": lambda: per_head,
    "equal": lambda: "equal",
    "capped": lambda: qkv.ScaledDot().soft_cap(2.0),
    "temperature per head": lambda: qkv.ScaledDot().with_temperature(
        [0.5, 1.0, 2.0, 3.0, 0.7, 1.1], learnable=True
    ),
    "factor per head": lambda: qkv.Additive(D, D, 13).double() * torch.rand(HEADS).double(),
}
MASKS: dict[str, Any] = {
    "none": lambda: None,
    "causal": masks.Causal,
    "window": lambda: masks.Window(2, 1),
    "lengths": lambda: masks.Lengths([M, 3]),
    "lengths of heads": lambda: masks.Lengths(torch.randint(0, M, (BATCH, HEADS))),
    "lengths and causal": lambda: masks.Lengths([M, 3]) & masks.Causal(),
    "topk": lambda: masks.TopK(3),
    "keys": lambda: torch.rand(BATCH, 1, 1, M) < 0.7,
    "pairs": lambda: torch.rand(N, M) < 0.7,
    "pairs of entries": lambda: torch.rand(BATCH, 1, N, M) < 0.7,
    "pairs of heads": lambda: torch.rand(BATCH, HEADS, N, M) < 0.7,
    "floating": lambda: torch.randn(HEADS, N, M, dtype=torch.float64, requires_grad=True),
    "function": lambda: lambda query, key: (query - key) % 3 != 0,
    "function of heads": lambda: lambda batch, head, query, key: (query - key + head) % 3 != 0,
}


def check(similarity: Any, mask: Any, bias: Any = None) -> None:
    leaves = tokens()
    # Equal needs keys that equal queries.
    with torch.no_grad():
        leaves[0].mul_(2).round_()
        leaves[1].mul_(2).round_()
    options = {"similarity": similarity, "mask": mask, "bias": bias}
    learned = list(similarity.parameters()) if isinstance(similarity, qkv.Similarity) else []
    if isinstance(mask, Tensor) and mask.requires_grad:
        learned.append(mask)
    expected = qkv.attend(*repeated(*leaves), **options, operator="dense")
    got = qkv.attend(*leaves, **options, enable_gqa=True)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)
    direction = torch.randn_like(expected)
    wanted, found = (
        torch.autograd.grad(x, [*leaves, *learned], direction, allow_unused=True)
        for x in (expected, got)
    )
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-9)
    partial = qkv.attend_partial(*leaves, **options, enable_gqa=True)
    whole = qkv.attend_partial(*repeated(*leaves), **options)
    torch.testing.assert_close(partial.log_total, whole.log_total, rtol=0, atol=1e-10)
    torch.testing.assert_close(partial.answer, whole.answer, rtol=0, atol=1e-10)
    query, key, value = leaves
    weights = qkv.weights(query, key, **options, enable_gqa=True)
    torch.testing.assert_close(weights @ repeated(query, value)[1], expected, rtol=0, atol=1e-10)
    plan = qkv.explain(*leaves, **options, enable_gqa=True)
    whole_plan = qkv.explain(*repeated(*leaves), **options)
    assert plan.dense_bytes == whole_plan.dense_bytes


@pytest.mark.parametrize("similarity", SIMILARITIES)
def test_every_similarity(similarity: str) -> None:
    for mask in ("none", "causal", "floating", "lengths"):
        check(SIMILARITIES[similarity](), MASKS[mask]())


@pytest.mark.parametrize("mask", MASKS)
def test_every_mask(mask: str) -> None:
    for similarity in ("dot", "additive", "temperature per head"):
        check(SIMILARITIES[similarity](), MASKS[mask]())


def test_a_bias_of_each_query_head() -> None:
    check(None, masks.Causal(), qkv.bias.Alibi(HEADS))


@pytest.mark.parametrize("operator", ["sdpa", "fused", "dense", "streamed", "banded"])
def test_every_operator(operator: str) -> None:
    similarity = qkv.Additive(D, D, 13).double() if operator == "fused" else None
    leaves, mask = tokens(), masks.Causal()
    expected = qkv.attend(*repeated(*leaves), similarity=similarity, mask=mask, operator="dense")
    got = qkv.attend(*leaves, similarity=similarity, mask=mask, operator=operator, enable_gqa=True)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_dropout_drops_what_it_would_of_repeated_heads() -> None:
    leaves = tokens()
    torch.manual_seed(3)
    expected = qkv.attend(*repeated(*leaves), dropout=0.5)
    torch.manual_seed(3)
    got = qkv.attend(*leaves, dropout=0.5, enable_gqa=True)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_as_torch_has_it() -> None:
    leaves = [x.detach().float()[..., :D] for x in tokens()]
    expected = torch.nn.functional.scaled_dot_product_attention(*leaves, enable_gqa=True)
    torch.testing.assert_close(qkv.attend(*leaves, enable_gqa=True), expected)


def test_other_leading_axes() -> None:
    query, key, value = tokens()
    for leaves in ([query[0], key[0], value[0]], [query[0], key, value], [query[None], key, value]):
        for mask in (None, masks.Causal(), torch.rand(HEADS, N, M) < 0.7):
            expected = qkv.attend(*repeated(*leaves), mask=mask)
            got = qkv.attend(*leaves, mask=mask, enable_gqa=True)
            torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("n", [1, N])
def test_all_heads_share_one(n: int) -> None:
    query, key, value = (x[:, :size] for x, size in zip(tokens(n), (HEADS, 1, 1), strict=True))
    for mask in (None, masks.Causal(), masks.Window(3, 0), torch.rand(HEADS, n, M) < 0.7):
        expected = qkv.attend(query, key, value, mask=mask)
        got = qkv.attend(query, key, value, mask=mask, enable_gqa=True)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-12)


def test_second_derivatives_and_a_graph() -> None:
    leaves = tokens(2, 3)
    assert torch.autograd.gradgradcheck(lambda *x: qkv.attend(*x, enable_gqa=True), leaves)
    compiled = torch.compile(
        lambda *x: qkv.attend(*x, mask=masks.Causal(), enable_gqa=True),
        fullgraph=True,
        backend="aot_eager",
    )
    expected = qkv.attend(*repeated(*leaves), mask=masks.Causal())
    torch.testing.assert_close(compiled(*leaves), expected, rtol=0, atol=1e-12)


def test_recordings_show_each_head() -> None:
    leaves = [x.detach() for x in tokens()]

    class Layer(torch.nn.Module):
        def forward(self, *leaves: Tensor) -> Tensor:
            return qkv.attend(*leaves, enable_gqa=True)

    with qkv.record(layer := Layer()) as calls:
        layer(*leaves)
    expected = qkv.weights(*repeated(*leaves)[:2])
    torch.testing.assert_close(calls[0].weights(), expected, rtol=0, atol=1e-10)


@pytest.mark.skipif(not can_measure_memory(), reason="the system tells no high-water mark")
@pytest.mark.parametrize(
    ("n", "mask"), [(1, masks.Lengths([50_000])), (64, masks.Causal()), (64, masks.Window(999, 0))]
)
@pytest.mark.parametrize("similarity", [None, qkv.Additive(64, 64, 4)], ids=str)
def test_keys_are_not_copied(n: int, mask: Any, similarity: Any) -> None:
    m = 50_000
    query, key, value = torch.randn(1, 8, n, 64), *torch.randn(2, 1, 2, m, 64).unbind()
    with torch.no_grad():

        def ask() -> None:
            qkv.attend(query, key, value, similarity=similarity, mask=mask, enable_gqa=True)

        ask()
        repeating = 4 * key.nbytes  # of keys alone
        assert peak_extra_bytes(ask) < 0.8 * repeating


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((3, 2), (3, 2), (3, 2)), r"query must have shape \(..., heads, rows, dimensions\)"),
        (((6, 3, 2), (4, 3, 2), (4, 3, 2)), r"must be a multiple of those of key; got 6 and 4"),
        (((6, 3, 2), (3, 3, 2), (2, 3, 2)), r"value must have the 3 heads of key; got \(2, 3, 2\)"),
    ],
)
def test_mistakes(shapes: Any, message: str) -> None:
    tensors = [torch.zeros(shape) for shape in shapes]
    with pytest.raises(ValueError, match=message):
        qkv.attend(*tensors, enable_gqa=True)
