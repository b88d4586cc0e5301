"""Masks as objects."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import qkv
from qkv.mask import And, Blocks, Causal, Dilated, Lengths, Or, TopK, Window, as_mask


def pattern(mask: object, n: int, m: int, batch: tuple[int, ...] = ()) -> torch.Tensor:
    zeros = torch.zeros(*batch, n, 1), torch.zeros(*batch, m, 1)
    return qkv.weights(*zeros, mask=mask) > 0


def test_pictures() -> None:
    def draw(mask: object, n: int, m: int) -> list[str]:
        return ["".join(".#"[int(x)] for x in row) for row in pattern(mask, n, m)]

    assert draw(Causal(), 3, 3) == ["#..", "##.", "###"]
    assert draw(Causal(), 2, 4) == ["###.", "####"]
    assert draw(Causal(), 4, 2) == ["..", "..", "#.", "##"]
    assert draw(Window(1, 0), 4, 4) == ["#...", "##..", ".##.", "..##"]
    assert draw(Blocks(2), 4, 4) == ["##..", "##..", "..##", "..##"]
    assert draw(Dilated(1, 2), 5, 5) == ["#.#..", ".#.#.", "#.#.#", ".#.#.", "..#.#"]
    assert draw(Window(0, 0) | Blocks(2), 3, 3) == ["##.", "##.", "..#"]
    assert draw(Causal() & Window(1, 1), 3, 3) == ["#..", "##.", ".##"]


def test_lengths_go_with_the_first_axes() -> None:
    found = pattern(Lengths([1, 3]), 2, 3, batch=(2, 2))
    assert found[0].tolist() == [[[True, False, False]] * 2] * 2
    assert found[1].all()
    assert pattern(Lengths(2), 1, 3).tolist() == [[True, True, False]]
    assert pattern(Lengths(np.array([2])), 1, 3, batch=(2,)).sum() == 4


def test_top_k_breaks_ties_by_position_and_ranks_what_is_allowed() -> None:
    zeros = torch.zeros(3, 1)
    assert (qkv.weights(zeros, zeros, mask=TopK(2)) > 0).tolist() == [[True, True, False]] * 3
    assert (qkv.weights(zeros, zeros, mask=TopK(99)) > 0).all()
    scores = torch.tensor([[9.0, 5.0, 7.0]])
    only_last = torch.tensor([[False, True, True]])
    for mask in (TopK(1) & only_last, only_last & TopK(1)):
        found = qkv.weights(torch.ones(1, 1), scores.T, similarity="dot", mask=mask)
        assert found.tolist() == [[0.0, 0.0, 1.0]]


def test_tensors_combine_from_either_side() -> None:
    boolean = torch.ones(3, 3, dtype=torch.bool)
    assert isinstance(boolean & Causal(), And)
    assert isinstance(Causal() & boolean, And)
    assert isinstance(boolean | Causal(), Or)
    assert isinstance(Causal() | boolean, Or)


def test_a_floating_mask_multiplies_a_kernel() -> None:
    query, key = torch.randn(3, 2).double(), torch.randn(5, 2).double()
    factor = torch.rand(3, 5).double()
    kernel = qkv.Gaussian()(query, key) * factor
    found = qkv.weights(query, key, similarity="gaussian", mask=factor.log())
    torch.testing.assert_close(found, kernel / kernel.sum(-1, keepdim=True))


def test_mistakes() -> None:
    with pytest.raises(ValueError, match=r"^before must be at least 0; got -1$"):
        Window(-1, 2)
    with pytest.raises(ValueError, match=r"^size must be at least 1; got 0$"):
        Blocks(0)
    with pytest.raises(ValueError, match=r"^k must be at least 1; got 0$"):
        TopK(0)
    with pytest.raises(TypeError, match=r"^stride must be a whole number; got float$"):
        Dilated(1, 2.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^lengths must be whole numbers; got torch.float32$"):
        Lengths(torch.tensor([1.0]))
    with pytest.raises(TypeError, match=r"combines with & only$"):
        Causal() | torch.zeros(3, 3)
    with pytest.raises(TypeError, match=r"^mask must be a qkv.mask object, .* got list$"):
        as_mask([True])  # type: ignore[arg-type]


def test_masks_read_well() -> None:
    mask = (Causal() & Lengths([3, 1])) | Window(1, 2)
    assert repr(mask) == "((Causal() & Lengths([3, 1])) | Window(1, 2))"
    assert repr(as_mask(torch.ones(2, 3, dtype=torch.bool))) == "boolean tensor (2, 3)"


@pytest.mark.parametrize(
    "mask",
    [
        Causal(),
        Window(2, 1),
        Blocks(3),
        Dilated(2, 3),
        Lengths([4, 0]),
        Causal() & Lengths([4, 2]),
        Window(4, 4) & Dilated(3, 2),
        Dilated(3, 2) & Causal() & Lengths([5, 3]),
        Blocks(4) & Window(1, 9),
    ],
    ids=repr,
)
@pytest.mark.parametrize(("n", "m"), [(7, 7), (5, 11), (11, 5)])
def test_runs_are_the_same_keys(mask: qkv.mask.Mask, n: int, m: int) -> None:
    tile = qkv.mask.Tile(1, n, n, m, (2,), torch.device("cpu"))
    runs = mask.as_runs(tile)
    keys = torch.arange(m)
    start, stop = runs.start.unsqueeze(-1), runs.stop.unsqueeze(-1)
    found = (keys >= start) & (keys < stop) & ((keys - start) % runs.stride == 0)
    expected = mask.allowed(tile)
    assert torch.equal(found.expand(2, n - 1, m), expected.expand(2, n - 1, m))


def test_masks_that_are_no_runs() -> None:
    tile = qkv.mask.Tile(0, 3, 3, 3, (), torch.device("cpu"))
    boolean = as_mask(torch.ones(3, 3, dtype=torch.bool))
    for mask in (TopK(1), boolean, Causal() | Window(1, 1), Dilated(1, 2) & Dilated(1, 3)):
        assert mask.as_runs(tile) is None


def test_the_best_of_what_is_allowed() -> None:
    assert TopK(3).as_topk() == (3, None)
    k, rest = (Causal() & TopK(2) & Lengths([3])).as_topk()
    assert (k, repr(rest)) == (2, "(Causal() & Lengths([3]))")
    assert Causal().as_topk() is None
    assert (TopK(1) & TopK(2)).as_topk() is None
    assert (TopK(1) | Causal()).as_topk() is None
