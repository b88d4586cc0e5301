"""Safe from several threads at once, and in forked and spawned workers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import qkv

SIMILARITIES = ["scaled_dot", "gaussian", "triangular"]


def _answers(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    query, key, value = (torch.randn(2, 67, 5, generator=generator) for _ in range(3))
    return torch.stack([qkv.attend(query, key, value, similarity=name) for name in SIMILARITIES])


def test_many_threads_at_once() -> None:
    expected = [_answers(seed) for seed in range(8)]
    with ThreadPoolExecutor(8) as pool:
        for _ in range(5):
            for found, reference in zip(pool.map(_answers, range(8)), expected, strict=True):
                assert torch.equal(found, reference)


def test_gradients_of_a_shared_similarity_from_many_threads() -> None:
    similarity = qkv.Additive(5, 5, 7)
    query, key, value = (torch.randn(3, 67, 5) for _ in range(3))

    def gradient(_: int) -> torch.Tensor:
        answer = qkv.attend(query, key, value, similarity=similarity)
        return torch.autograd.grad(answer.sum(), similarity.weight)[0]

    with ThreadPoolExecutor(8) as pool:
        first, *others = pool.map(gradient, range(16))
    for other in others:
        torch.testing.assert_close(first, other)


class _Answers(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 6

    def __getitem__(self, index: int) -> torch.Tensor:
        return _answers(index)


@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_in_the_workers_of_a_data_loader_after_the_parent_used_it(start: str) -> None:
    expected = torch.stack([_answers(index) for index in range(6)])
    loader = DataLoader(
        _Answers(), batch_size=3, num_workers=2, multiprocessing_context=start, timeout=120
    )
    torch.testing.assert_close(torch.cat(list(loader)), expected)
