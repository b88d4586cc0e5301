"""The rules that every operator keeps, for every similarity and mask that it serves."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from cases import BATCH, D_V, MASKS, SIMILARITIES, Case, M, MaskCase, N, expected, inputs
from operators import (
    DISTANCES,
    combinations,
    every_combination,
    every_similarity,
    masks_served,
    similarities,
)
from torch import Tensor

import qkv
from qkv.operators import banded, sdpa, streamed, topk

CAUSAL = next(case for case in MASKS if case.name == "causal")
SCALED_DOT = next(case for case in SIMILARITIES if case.name == "scaled_dot")
FLOATING = next(case for case in MASKS if case.name == "floating")
FEW_MASKS = [case for case in MASKS if case.name in ("none", "causal", "boolean", "floating")]


@pytest.fixture(autouse=True)
def _one_row_a_tile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small problems would fit into one tile, where tiling is not put to the test."""
    for module in (streamed, sdpa, topk):
        monkeypatch.setattr(module, "TILE_BYTES", 1)
    monkeypatch.setattr(banded, "BLOCK", 2)


@pytest.mark.parametrize("tile_bytes", [100, 500, 1000, 10**6])
@pytest.mark.parametrize("mask_case", MASKS, ids=lambda case: case.name)
def test_tile_size_does_not_matter(
    mask_case: MaskCase, tile_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    query, key, value = (x.requires_grad_() for x in inputs(SIMILARITIES[4], n=19, m=23))
    mask, similarity = mask_case.make(19, 23), SIMILARITIES[4].build()

    def run(operator: str) -> tuple[Tensor, ...]:
        answer = qkv.attend(query, key, value, similarity=similarity, mask=mask, operator=operator)
        wanted = [query, key, value, *similarity.parameters()]
        return (answer, *torch.autograd.grad(answer.square().sum(), wanted))

    monkeypatch.setattr(streamed, "TILE_BYTES", tile_bytes)
    for found, reference in zip(run("streamed"), run("dense"), strict=True):
        torch.testing.assert_close(found, reference)


@every_combination
def test_the_answer_equals_the_oracle(operator: str, case: Case, mask_case: MaskCase) -> None:
    similarity, mask = case.build(), mask_case.make(N, M)
    query, key, value = inputs(case)
    answer, _, _ = expected(case, mask_case, similarity, mask, query, key, value)
    options = {"similarity": similarity, "mask": mask}
    found = qkv.attend(query, key, value, operator=operator, **options)
    torch.testing.assert_close(found, answer, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize(("operator", "case", "mask_case"), list(combinations(operators={"dense"})))
def test_totals_and_weights_equal_the_oracle(
    operator: str, case: Case, mask_case: MaskCase
) -> None:
    """No operator is named: once for each similarity and mask is enough."""
    similarity, mask = case.build(), mask_case.make(N, M)
    query, key, value = inputs(case)
    answer, weights, totals = expected(case, mask_case, similarity, mask, query, key, value)
    options = {"similarity": similarity, "mask": mask}
    partial = qkv.attend_partial(query, key, value, **options)
    torch.testing.assert_close(partial.log_total, totals, rtol=1e-11, atol=1e-12)
    torch.testing.assert_close(partial.answer, answer, rtol=1e-11, atol=1e-12)
    found = qkv.weights(query, key, **options)
    torch.testing.assert_close(found, weights, rtol=1e-11, atol=1e-12)
    some = qkv.weights(query, key, rows=slice(1, 4), **options)
    torch.testing.assert_close(some, weights[:, 1:4], rtol=1e-11, atol=1e-12)


#: What they allow does not depend on how queries and keys are aligned.
UNALIGNED = {
    "none",
    "lengths",
    "top",
    "top-floating",
    "floating",
    "boolean",
    "boolean-per-key",
    "boolean-per-batch",
}
ALIGNED = [case for case in MASKS if case.name not in UNALIGNED]


@pytest.mark.parametrize(("operator", "case", "mask_case"), list(combinations(ALIGNED)))
def test_more_queries_than_keys_are_aligned_to_the_end(
    operator: str, case: Case, mask_case: MaskCase
) -> None:
    similarity, mask = case.build(), mask_case.make(M, N)
    query, key, value = inputs(case, n=M, m=N)
    answer, _, _ = expected(case, mask_case, similarity, mask, query, key, value)
    found = qkv.attend(query, key, value, similarity=similarity, mask=mask, operator=operator)
    torch.testing.assert_close(found, answer, rtol=1e-11, atol=1e-12)


#: Those by which single keys are hidden, whatever the scores.
HIDING = [case for case in MASKS if case.top is None and case.name != "none"]


@pytest.mark.parametrize(("operator", "case", "mask_case"), list(combinations(HIDING)))
def test_a_masked_key_has_no_influence(operator: str, case: Case, mask_case: MaskCase) -> None:
    """Not on the answer, not on a gradient, whether it is moved far away or made NaN or inf."""
    similarity, mask = case.build(), mask_case.make(N, M)

    def run(key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
        parts = [x.clone().requires_grad_() for x in (query, key, value)]
        answer = qkv.attend(*parts, similarity=similarity, mask=mask, operator=operator)
        (answer * upstream).sum().backward()
        return (answer.detach(), *(part.grad for part in parts))

    query, key, value = inputs(case)
    upstream = torch.randn(BATCH, N, D_V, dtype=torch.float64)
    pattern = qkv.weights(query, torch.zeros_like(key), similarity=_flat, mask=mask) > 0
    whole = run(key, value)
    for victim in (1, M - 1):
        blind = ~pattern[:, :, victim]  # (batch, n): queries that may not see the victim
        untouched = torch.where(blind.unsqueeze(-1), whole[0], 0)
        for junk in (torch.nan, torch.inf, 1e4):
            other_key, other_value = key.clone(), value.clone()
            other_key[:, victim], other_value[:, victim] = junk, junk
            answer, *gradients = run(other_key, other_value)
            torch.testing.assert_close(
                torch.where(blind.unsqueeze(-1), answer, 0), untouched, rtol=1e-12, atol=1e-13
            )
            if blind.all():
                for gradient, before in zip(gradients, whole[1:], strict=True):
                    torch.testing.assert_close(gradient, before, rtol=1e-12, atol=1e-13)
                    assert gradient.isfinite().all()
            elif junk is torch.nan:
                shows = answer.isnan().all(-1)
                assert shows[~blind].all(), "NaN in an attended key must show"


def _flat(query: Tensor, key: Tensor) -> Tensor:
    """A similarity to which all keys are alike, so that weights show the mask alone."""
    return (query.sum(-1) * 0).unsqueeze(-1) + (key.sum(-1) * 0).unsqueeze(-2)


def _declines_nan(operator: str, case: Case) -> str | None:
    """The reason, of an operator that looks at the numbers first."""
    if operator == "sdpa" and case.name in DISTANCES:
        return "spread over nan bandwidths"
    return "would contaminate the prefix sums" if operator == "sorted" else None


@pytest.mark.parametrize(
    ("operator", "case"), similarities(lambda o, case: _declines_nan(o, case) is not None)
)
def test_nan_is_declined_by_what_cannot_show_it(operator: str, case: Case) -> None:
    query, key, value = inputs(case)
    key[1, 3] = torch.nan
    with pytest.raises(ValueError, match=_declines_nan(operator, case)):
        qkv.attend(query, key, value, similarity=case.build(), operator=operator)


@pytest.mark.parametrize(
    ("operator", "case"), similarities(lambda o, case: _declines_nan(o, case) is None)
)
def test_nan_in_an_attended_key_shows(operator: str, case: Case) -> None:
    similarity = case.build()
    query, key, value = inputs(case)
    key[1, 3] = torch.nan
    answer = qkv.attend(query, key, value, similarity=similarity, operator=operator)
    assert answer[1].isnan().all()
    assert answer[0].isfinite().all(), "batch entries are independent"


@pytest.mark.parametrize(("operator", "case", "mask_case"), list(combinations(FEW_MASKS)))
def test_weights_form_a_convex_combination(operator: str, case: Case, mask_case: MaskCase) -> None:
    """With the unit vectors as values, the answer is the weights."""
    similarity, mask = case.build(), mask_case.make(N, M)
    query, key, _ = inputs(case)
    units = torch.eye(M, dtype=torch.float64).expand(BATCH, M, M)
    weights = qkv.attend(query, key, units, similarity=similarity, mask=mask, operator=operator)
    assert (weights >= 0).all()
    sums = weights.sum(-1)
    assert (((sums - 1).abs() < 1e-12) | (sums == 0)).all()


@every_similarity
def test_the_order_of_keys_does_not_matter(operator: str, case: Case) -> None:
    similarity = case.build()
    query, key, value = inputs(case)
    order = torch.randperm(M)
    options = {"similarity": similarity, "operator": operator}
    torch.testing.assert_close(
        qkv.attend(query, key[:, order], value[:, order], **options),
        qkv.attend(query, key, value, **options),
    )


@every_similarity
def test_batch_entries_are_independent(operator: str, case: Case) -> None:
    similarity = case.build()
    query, key, value = inputs(case)
    options = {"similarity": similarity, "operator": operator}
    whole = qkv.attend(query, key, value, **options)
    for b in range(BATCH):
        alone = qkv.attend(query[b], key[b], value[b], **options)
        torch.testing.assert_close(whole[b], alone)


@every_similarity
def test_leading_axes_broadcast(operator: str, case: Case) -> None:
    """Grouped heads: four query heads share two key heads, which share one value head."""
    similarity = case.build()
    query, key, value = inputs(case)
    heads = torch.randn(BATCH, 2, 3, N, query.shape[-1], dtype=torch.float64) * 0.4
    options = {"similarity": similarity, "operator": operator}
    found = qkv.attend(heads, key[:, None, None], value[:1], **options)
    assert found.shape == (BATCH, 2, 3, N, D_V)
    for b in range(BATCH):
        for g in range(2):
            for h in range(3):
                alone = qkv.attend(heads[b, g, h], key[b], value[0], **options)
                torch.testing.assert_close(found[b, g, h], alone)


@every_similarity
def test_strides_do_not_matter(operator: str, case: Case) -> None:
    similarity = case.build()
    query, key, value = inputs(case)
    options = {"similarity": similarity, "operator": operator}
    whole = qkv.attend(query, key, value, **options)
    twisted = [x.mT.contiguous().mT for x in (query, key, value)]
    torch.testing.assert_close(qkv.attend(*twisted, **options), whole)
    expanded = [x[:1].expand(BATCH, *x.shape[1:]) for x in (query, key, value)]
    torch.testing.assert_close(qkv.attend(*expanded, **options), whole[:1].expand_as(whole))


@pytest.mark.parametrize(
    ("batch", "n", "m"), [((2,), 0, 7), ((2,), 5, 0), ((0,), 5, 7), ((), 1, 1), ((0, 3), 0, 0)]
)
@pytest.mark.parametrize("mask", [None, qkv.mask.Causal(), qkv.mask.TopK(2)], ids=repr)
@pytest.mark.parametrize("similarity", ["scaled_dot", "gaussian", "triangular", "equal"])
def test_sizes_of_nothing_and_one(
    batch: tuple[int, ...], n: int, m: int, mask: Any, similarity: str
) -> None:
    query = torch.randn(*batch, n, 1, requires_grad=True)
    key, value = torch.randn(*batch, m, 1), torch.randn(*batch, m, 3)
    for operator in (None, "dense", "streamed"):
        answer = qkv.attend(query, key, value, similarity=similarity, mask=mask, operator=operator)
        assert answer.shape == (*batch, n, 3)
        assert answer.isfinite().all()
        if m == 0:
            assert (answer == 0).all()
        answer.sum().backward()
    assert qkv.weights(query, key, similarity=similarity, mask=mask).shape == (*batch, n, m)
    totals = qkv.attend_partial(query, key, value, similarity=similarity, mask=mask).log_total
    assert totals.shape == (*batch, n)


#: Where an operator's largest error may be more than four times the naive one, and how much more:
#: unscaled scores are large, and PyTorch's kernel adds their products in another order.
LARGEST = {("sdpa", "dot"): 8.0}


@pytest.mark.parametrize(("operator", "case", "mask_case"), list(combinations(FEW_MASKS)))
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_error_is_at_most_twice_that_of_a_naive_computation(
    operator: str, case: Case, mask_case: MaskCase, dtype: torch.dtype
) -> None:
    error, naive = errors(operator, case, mask_case, dtype)
    rest = 0.1 * torch.finfo(dtype).eps
    assert error.square().mean().sqrt() <= 2 * naive.square().mean().sqrt() + rest
    # The largest of few errors scatters more than their mean; docs/numerics.md tells how far.
    assert error.max() <= LARGEST.get((operator, case.name), 4.0) * naive.max() + rest


def errors(
    operator: str, case: Case, mask_case: MaskCase, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """How far an operator's answers and naive ones of the same type are from those in float64."""
    n, m = 31, 257
    query, key, value = inputs(case, n=n, m=m, dtype=dtype, batch=3)
    similarity, mask = case.build(dtype), mask_case.make(n, m)
    exact_similarity = case.build(dtype)
    if isinstance(exact_similarity, torch.nn.Module):
        exact_similarity = exact_similarity.double()
    exact_inputs = [x.double() for x in (query, key, value)]
    exact = qkv.attend(*exact_inputs, similarity=exact_similarity, mask=mask, operator="dense")

    plain = qkv.similarity.as_similarity(similarity)
    scores = plain(query, key).to(dtype)
    allowed, bias = torch.ones(n, m, dtype=torch.bool), torch.zeros(n, m, dtype=dtype)
    if mask is not None:
        mask = qkv.mask.as_mask(mask)
        allowed = mask.allowed(qkv.mask.Tile(0, n, n, m, (3,), query.device))
        bias = torch.zeros(()) if mask.bias() is None else mask.bias().to(dtype)
    if plain.weighting == "softmax":
        naive_weights = torch.softmax((scores + bias).masked_fill(~allowed, -torch.inf), -1)
    else:
        kernel = (scores * bias.exp()).masked_fill(~allowed, 0).to(dtype)
        naive_weights = kernel / kernel.sum(-1, keepdim=True)
    naive = naive_weights.nan_to_num(0.0).to(dtype) @ value
    found = qkv.attend(query, key, value, similarity=similarity, mask=mask, operator=operator)
    assert found.dtype == dtype
    return (found - exact).detach().abs(), (naive - exact).detach().abs()


@pytest.mark.parametrize(("operator", "case"), similarities(lambda o, case: o == "sorted"))
def test_what_has_no_backward_pass_says_so(operator: str, case: Case) -> None:
    query, key, value = (x[:1, :3].requires_grad_() for x in inputs(case))
    with pytest.raises(ValueError, match="no backward pass"):
        qkv.attend(query, key, value, similarity=case.build(), operator=operator)


@pytest.mark.parametrize(("operator", "case"), similarities(lambda o, case: o != "sorted"))
def test_gradients_once_and_twice(operator: str, case: Case) -> None:
    similarity = case.build()
    query, key, value = (x[:1, :3].requires_grad_() for x in inputs(case))
    parameters = list(similarity.parameters()) if isinstance(similarity, torch.nn.Module) else []

    def function(query: Tensor, key: Tensor, value: Tensor, *_: Tensor) -> Tensor:
        return qkv.attend(query, key, value, similarity=similarity, operator=operator)

    arguments = (query, key, value, *parameters)
    torch.autograd.gradcheck(function, arguments, fast_mode=True)
    torch.autograd.gradgradcheck(function, arguments, fast_mode=True, atol=1e-4)


@pytest.mark.parametrize(("operator", "mask_case"), masks_served(SCALED_DOT))
def test_gradients_under_masks(operator: str, mask_case: MaskCase) -> None:
    case = SCALED_DOT
    query, key, value = (x.requires_grad_() for x in inputs(case))
    mask = mask_case.make(N, M)

    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return qkv.attend(query, key, value, mask=mask, operator=operator)

    torch.autograd.gradcheck(function, (query, key, value), fast_mode=True)
    torch.autograd.gradgradcheck(function, (query, key, value), fast_mode=True, atol=1e-4)
    answer = function(query, key, value)
    empty = (answer == 0).all(-1)
    (gradient,) = torch.autograd.grad(answer.sum(), query)
    assert (gradient[empty] == 0).all()


@pytest.mark.parametrize("operator", ["dense", "streamed"])
@pytest.mark.parametrize("shape", [(N, M), (1, M), (M,), (BATCH, N, M)], ids=str)
@pytest.mark.parametrize("similarity", ["dot", "gaussian", "triangular"])
def test_gradient_of_a_floating_mask(
    operator: str, shape: tuple[int, ...], similarity: str
) -> None:
    case = Case("", lambda: None, lambda s: lambda q, k: 0.0, near=True)
    query, key, value = inputs(case)
    bias = torch.randn(*shape, dtype=torch.float64, requires_grad=True)

    def function(bias: Tensor) -> Tensor:
        mask = qkv.mask.Causal() & bias
        return qkv.attend(query, key, value, similarity=similarity, mask=mask, operator=operator)

    torch.autograd.gradcheck(function, (bias,))
    torch.autograd.gradgradcheck(function, (bias,), fast_mode=True)


WITHOUT_DROPOUT = {"sdpa", "lookup", "sorted"}
under_masks = pytest.mark.parametrize(
    "mask_case", [MASKS[0], CAUSAL, FLOATING], ids=lambda case: case.name
)


@pytest.mark.parametrize(("operator", "case"), similarities(lambda o, case: o in WITHOUT_DROPOUT))
@under_masks
def test_dropout_is_declined_by_what_cannot_drop(
    operator: str, case: Case, mask_case: MaskCase
) -> None:
    query, key, value = inputs(case)
    options = {"similarity": case.build(), "mask": mask_case.make(N, M), "dropout": 0.4}
    with pytest.raises(ValueError, match=r"(under|support) dropout|support no mask but"):
        qkv.attend(query, key, value, operator=operator, **options)


@pytest.mark.parametrize(
    ("operator", "case"), similarities(lambda o, case: o not in WITHOUT_DROPOUT)
)
@under_masks
def test_dropout_is_the_same_for_every_operator(
    operator: str, case: Case, mask_case: MaskCase
) -> None:
    query, key, value = inputs(case)
    similarity, mask = case.build(), mask_case.make(N, M)
    options = {"similarity": similarity, "mask": mask, "dropout": 0.4}

    def run(operator: str) -> tuple[Tensor, ...]:
        torch.manual_seed(3)
        parts = [x.clone().requires_grad_() for x in (query, key, value)]
        answer = qkv.attend(*parts, operator=operator, **options)
        return (answer, *torch.autograd.grad(answer.square().sum(), parts))

    for found, reference in zip(run(operator), run("dense"), strict=True):
        torch.testing.assert_close(found, reference)


@pytest.mark.parametrize("operator", ["dense", "streamed", "sdpa"])
def test_partial_answers_merge_to_the_whole(operator: str) -> None:
    query, key, value = inputs(Case("", lambda: None, lambda s: lambda q, k: 0.0), m=29)
    whole = qkv.attend_partial(query, key, value, operator=operator)
    cuts = [0, 0, 1, 8, 28, 29, 29]
    parts = [qkv.attend_partial(query, key[:, a:b], value[:, a:b]) for a, b in pairwise(cuts)]
    merged = parts[3]
    for part in (parts[0], parts[5], parts[1], parts[4], parts[2]):
        merged = part.merge(merged)
    torch.testing.assert_close(merged.answer, whole.answer)
    torch.testing.assert_close(merged.log_total, whole.log_total)
