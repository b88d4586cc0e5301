"""Half-finished answers."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

import qkv


def _parts(*cuts: int) -> list[qkv.Partial]:
    query, key, value = torch.randn(3, 5), torch.randn(11, 5), torch.randn(11, 2)
    edges = [0, *cuts, 11]
    return [qkv.attend_partial(query, key[a:b], value[a:b]) for a, b in pairwise(edges)]


def test_merging_is_associative_and_commutative() -> None:
    a, b, c = _parts(3, 8)
    one, other = a.merge(b).merge(c), a.merge(b.merge(c))
    torch.testing.assert_close(one.answer, other.answer)
    torch.testing.assert_close(one.log_total, other.log_total)
    torch.testing.assert_close(a.merge(b).answer, b.merge(a).answer)


def test_nothing_is_neutral() -> None:
    (whole,) = _parts()
    nothing = qkv.Partial.nothing(like=whole)
    for merged in (whole.merge(nothing), nothing.merge(whole)):
        assert torch.equal(merged.answer, whole.answer)
        torch.testing.assert_close(merged.log_total, whole.log_total)
    empty = nothing.merge(nothing)
    assert (empty.answer == 0).all()
    assert (empty.log_total == -torch.inf).all()


def test_far_apart_totals_do_not_overflow() -> None:
    answer = torch.ones(1, 1)
    small = qkv.Partial(answer, torch.tensor([-1e4]))
    large = qkv.Partial(2 * answer, torch.tensor([1e4]))
    merged = small.merge(large)
    assert merged.answer.item() == 2
    assert merged.log_total.item() == 1e4


def test_gradients_flow_through_a_merge() -> None:
    query, key, value = (
        torch.randn(n, 3, dtype=torch.float64, requires_grad=True) for n in (2, 5, 5)
    )

    def function(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        left = qkv.attend_partial(query, key[:2], value[:2])
        right = qkv.attend_partial(query, key[2:], value[2:])
        nothing = qkv.Partial.nothing(like=left)
        return nothing.merge(left).merge(right).answer

    torch.testing.assert_close(function(query, key, value), qkv.attend(query, key, value))
    torch.autograd.gradcheck(function, (query, key, value))
