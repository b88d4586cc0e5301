"""Packed sentences and functions of positions as masks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from cases import SIMILARITIES, Case
from torch import Tensor

import qkv
from qkv.mask import Allowed, BlockTable, Causal, Documents, Function, Tile, Window
from qkv.similarity import as_similarity

LENGTHS = [5, 1, 11, 0, 7, 7, 3]
N, BATCH, HEADS, D_V = sum(LENGTHS), 2, 3, 5

EDGES = [0, *itertools.accumulate(LENGTHS)]


def tokens(case: Case) -> tuple[Tensor, Tensor, Tensor]:
    query, key = (
        torch.randn(BATCH, HEADS, N, size).double() for size in (case.query_dim, case.key_dim)
    )
    return query, key, torch.randn(BATCH, HEADS, N, D_V).double()


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("case", SIMILARITIES, ids=lambda case: case.name)
def test_a_packed_sentence_is_what_it_is_alone_with_its_gradient(case: Case, causal: bool) -> None:
    similarity = as_similarity(case.build())
    whole = [x.requires_grad_() for x in tokens(case)]
    mask = Documents(LENGTHS) & Causal() if causal else Documents(LENGTHS)
    packed = qkv.attend(*whole, similarity=similarity, mask=mask)
    alone = torch.cat(
        [
            qkv.attend(
                *(x[..., start:stop, :] for x in whole),
                similarity=similarity, mask=Causal() if causal else None, operator="dense",
            )
            for start, stop in itertools.pairwise(EDGES)
        ],
        dim=-2,
    )  # fmt: skip
    torch.testing.assert_close(packed, alone)
    pull = torch.randn_like(packed)
    wanted = [*whole, *similarity.parameters()]
    got = torch.autograd.grad(packed, wanted, pull, allow_unused=True)
    expected = torch.autograd.grad(alone, wanted, pull, allow_unused=True)
    for left, right in zip(got, expected, strict=True):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("operator", ["dense", "streamed", "banded", "sdpa"])
def test_every_operator_agrees_on_ids_of_a_batch_with_padding(operator: str) -> None:
    ids = torch.full((BATCH, 9), -1)
    ids[0, :7], ids[1, 2:] = (
        torch.tensor([4, 4, 4, 0, 0, 2, 2]),
        torch.tensor([1, 1, 1, 1, 0, 0, 5]),
    )
    query, key, value = torch.randn(3, BATCH, HEADS, 9, 4).double().unbind()
    same = (ids[:, :, None] == ids[:, None, :]) & (ids[:, :, None] >= 0)
    expected = qkv.attend(query, key, value, mask=Allowed(same[:, None]), operator="dense")
    got = qkv.attend(query, key, value, mask=Documents.from_ids(ids), operator=operator)
    torch.testing.assert_close(got, expected)
    assert got[1, :, :2].eq(0).all()  # padding sees nothing


def test_a_document_torn_apart_is_still_one() -> None:
    mask = Documents.from_ids([0, 1, 0, 1])
    zeros = torch.zeros(4, 1)
    assert qkv.weights(zeros, zeros, mask=mask)[0].tolist() == [0.5, 0.0, 0.5, 0.0]
    with pytest.raises(ValueError, match="more than one run of keys"):
        qkv.attend(zeros, zeros, zeros, mask=mask, operator="banded")


def test_offsets_are_lengths_added_up() -> None:
    assert torch.equal(Documents.from_offsets(EDGES).ids, Documents(LENGTHS).ids)


def test_only_the_pairs_that_count_are_touched() -> None:
    x = torch.randn(4096, 8)
    for similarity in (qkv.ScaledDot(), qkv.Gaussian(bandwidth=1.0)):
        plan = qkv.explain(x, x, x, similarity=similarity, mask=Documents([64] * 64))
        assert plan.operator in ("banded", "fused")
        assert "1.56% of the pairs are allowed" in plan.reason


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: Documents([1.5]), "lengths must be whole numbers; got torch.float32"),
        (lambda: Documents([3, -1]), r"a list of lengths, none below 0; got \[3, -1\]"),
        (lambda: Documents.from_ids([0.5]), "ids must be whole numbers; got torch.float32"),
        (lambda: qkv.weights(torch.zeros(3, 1), torch.zeros(4, 1), mask=Documents([3])),
         "numbers 3 tokens, which must be all queries and all keys; got 3 queries and 4 keys"),
        (lambda: qkv.weights(torch.zeros(2, 3, 1), torch.zeros(2, 3, 1),
                             mask=Documents.from_ids(torch.zeros(5, 3).long())),
         r"Documents must match the first leading axes \(2,\); got shape \(5,\)"),
    ],
)  # fmt: skip
def test_mistakes_with_documents_are_told(make: Any, text: str) -> None:
    with pytest.raises((TypeError, ValueError), match=text):
        make()


def spiral(query: Tensor, key: Tensor) -> Tensor:
    return (query * 3 + key * 5) % 7 != 0


@pytest.mark.parametrize("case", SIMILARITIES, ids=lambda case: case.name)
def test_a_function_of_positions_is_the_tensor_it_would_make(case: Case) -> None:
    similarity = case.build()
    query, key, value = tokens(case)
    query = query[..., 4:, :]  # aligned to the end
    made = spiral(torch.arange(4, N)[:, None], torch.arange(N))
    for operator in ("dense", "streamed", None):
        got = qkv.attend(query, key, value, similarity=similarity, mask=spiral, operator=operator)
        expected = qkv.attend(query, key, value, similarity=similarity, mask=made)
        torch.testing.assert_close(got, expected)


def test_a_function_may_ask_for_batch_and_head_too() -> None:
    def rule(b: Tensor, h: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (query >= key) | (key <= b * 3 + h)

    query, key, value = torch.randn(3, BATCH, HEADS, 7, 4).double().unbind()
    i, j = torch.arange(7)[:, None], torch.arange(7)
    made = rule(torch.arange(BATCH).view(-1, 1, 1, 1), torch.arange(HEADS).view(-1, 1, 1), i, j)
    expected = qkv.attend(query, key, value, mask=made)
    for operator in (None, "sdpa", "streamed", "dense"):
        torch.testing.assert_close(
            qkv.attend(query, key, value, mask=rule, operator=operator), expected
        )
    narrowed = Function(rule).narrow(1, 2, 3, (BATCH, HEADS)).narrow(0, 1, 2, (BATCH, 1))
    tile = qkv.mask.Tile(0, 7, 7, 7, (1, 1), torch.device("cpu"))
    assert torch.equal(narrowed.allowed(tile), made[1:, 2:])


def test_a_function_is_never_asked_for_all_pairs() -> None:
    asked = []

    def far(query: Tensor, key: Tensor) -> Tensor:
        asked.append(query.numel() * key.numel())
        return (query - key).abs() > 3

    n = 3000
    x = torch.randn(n, 8)
    qkv.attend(x, x, x, mask=far)
    assert max(asked) < n * n
    combined = qkv.attend(x, x, x, mask=Function(far) & Window(9, 9))
    assert combined.isfinite().all()


@pytest.mark.parametrize(
    ("rule", "text"),
    [
        (lambda query: query > 0, r"takes \(query position, key position\), after .* takes 1"),
        (lambda a, b, c, d, e: a, r"for leading axes \(2, 3\) it must take 2 or 4"),
        (lambda query, key: query - key, "must give True or False; got torch.int64"),
    ],
)  # fmt: skip
def test_mistakes_with_functions_are_told(rule: Any, text: str) -> None:
    x = torch.randn(BATCH, HEADS, 7, 4)
    with pytest.raises((TypeError, ValueError), match=text):
        qkv.attend(x, x, x, mask=rule)


def _table(kind: str) -> Tensor:
    side_by_side = torch.ones(4, 4, dtype=torch.bool).tril().triu(-1)
    side_by_side[1] = False  # sees nothing
    if kind == "gaps":
        side_by_side[3, 0] = True
    return side_by_side


@pytest.mark.parametrize("queries", [17, 5, 23])
@pytest.mark.parametrize("kind", ["side by side", "gaps"])
@pytest.mark.parametrize("similarity", [None, "laplacian", qkv.Additive(5, 5, 7).double()])
def test_a_table_of_blocks_is_the_mask_spelt_out(similarity: Any, kind: str, queries: int) -> None:
    keys, size = 17, 5
    mask = BlockTable(_table(kind), size)
    positions = torch.arange(queries) + keys - queries
    spelt = torch.zeros(queries, keys, dtype=torch.bool)
    for i, position in enumerate(positions.tolist()):
        for j in range(keys):
            spelt[i, j] = position >= 0 and _table(kind)[position // size, j // size]
    query = torch.randn(2, 3, queries, 5, dtype=torch.float64, requires_grad=True)
    key, value = (torch.randn(2, 3, keys, 5, dtype=torch.float64) for _ in range(2))
    expected = qkv.attend(
        query, key, value, similarity=similarity, mask=Allowed(spelt), operator="dense"
    )
    (wanted,) = torch.autograd.grad(expected.sum(), query)
    for operator in (None, "dense", "streamed"):
        found = qkv.attend(query, key, value, similarity=similarity, mask=mask, operator=operator)
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(torch.autograd.grad(found.sum(), query)[0], wanted)
    assert (mask.as_runs(Tile(0, 5, queries, keys, (), query.device)) is None) == (kind == "gaps")


def test_side_by_side_blocks_are_served_by_what_visits_their_keys_alone() -> None:
    tokens = torch.randn(4096, 16)
    table = torch.eye(64, dtype=torch.bool)
    plan = qkv.explain(tokens, tokens, tokens, similarity="laplacian", mask=BlockTable(table, 64))
    assert plan.operator == "fused"
    assert "1.56% of the pairs" in plan.reason


def test_a_table_of_another_size_or_type_is_refused() -> None:
    tokens = torch.zeros(10, 1)
    with pytest.raises(ValueError, match=r"must have 4 rows and columns for 10 keys .* 3; got 2$"):
        qkv.attend(tokens, tokens, tokens, mask=BlockTable(torch.eye(2, dtype=torch.bool), 3))
    with pytest.raises(TypeError, match=r"table must be boolean; got torch\.float32"):
        BlockTable(torch.eye(2), 3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"as many rows as columns, .* got shape \(2, 3\)"):
        BlockTable(torch.ones(2, 3, dtype=torch.bool), 3)
