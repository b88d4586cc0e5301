"""What parts of a tensor that broadcasts are those of the tensor in full."""

from __future__ import annotations

import pytest
import torch

from qkv.broadcast import batch_entries, broadcasts_to, query_rows

BATCH, N, M = (2, 3), 5, 7
SHAPES = [(5, 7), (1, 7), (1, 1), (3, 5, 7), (3, 1, 7), (2, 3, 5, 1), (2, 1, 1, 7), (1, 3, 5, 7)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_parts_are_those_of_the_whole(shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape)
    whole = tensor.expand(*BATCH, N, M)
    for start, stop in ((0, 2), (1, 4), (3, 5), (2, 2)):
        rows = query_rows(tensor, start, stop).expand(*BATCH, stop - start, M)
        torch.testing.assert_close(rows, whole[..., start:stop, :])
    for axis, size in enumerate(BATCH):
        for start in range(size):
            some = (*BATCH[:axis], 1, *BATCH[axis + 1 :])
            part = batch_entries(tensor, axis, start, start + 1, BATCH).expand(*some, N, M)
            torch.testing.assert_close(part, whole.narrow(axis, start, 1))


def test_numbers_of_heads_have_no_other_axes() -> None:
    numbers = torch.randn(3)
    assert torch.equal(batch_entries(numbers, 1, 1, 3, BATCH, trailing=0), numbers[1:3])
    assert batch_entries(numbers, 0, 1, 2, BATCH, trailing=0) is numbers
    assert batch_entries(numbers[0], 1, 1, 2, BATCH, trailing=0).ndim == 0


@pytest.mark.parametrize("shape", [*SHAPES, (3, 4, 7), (7, 5), (1, 2, 3, 5, 7), (2, 5, 7), ()])
def test_fitting_is_what_torch_can_expand(shape: tuple[int, ...]) -> None:
    try:
        torch.empty(shape).expand(*BATCH, N, M)
        expands = True
    except RuntimeError:
        expands = False
    assert broadcasts_to(shape, (*BATCH, N, M)) == expands
