"""Dropout keyed on position."""

from __future__ import annotations

import torch

from qkv import dropout

KEYS = torch.arange(1000, dtype=torch.int32)


def test_the_share_dropped_is_the_rate_in_rows_and_columns() -> None:
    drop = dropout.draw(0.3, (2,), 500, torch.device("cpu"))
    kept = dropout.keep(drop.row_keys, KEYS[:700], 0.3).float()
    assert abs(kept.mean() - 0.7) < 0.003
    # Four standard deviations of a share of 700, 500 and 2 × 500 × 700 independent draws.
    assert (kept.mean(-1) - 0.7).abs().max() < 5 * (0.21 / 700) ** 0.5
    assert (kept.mean(-2) - 0.7).abs().max() < 5 * (0.21 / 500) ** 0.5


def test_neighbours_are_unrelated() -> None:
    drop = dropout.draw(0.5, (), 400, torch.device("cpu"))
    kept = dropout.keep(drop.row_keys, KEYS[:400], 0.5).float() - 0.5
    for rows, columns in ((0, 1), (1, 0), (1, 1), (2, 3)):
        a, b = kept[: 400 - rows, : 400 - columns], kept[rows:, columns:]
        assert abs(4 * (a * b).mean()) < 5 / 400


def test_the_seed_of_torch_decides() -> None:
    def row_keys(seed: int) -> torch.Tensor:
        torch.manual_seed(seed)
        return dropout.draw(0.5, (2,), 9, torch.device("cpu")).row_keys

    assert torch.equal(row_keys(1), row_keys(1))
    assert not torch.equal(row_keys(1), row_keys(2))


def test_the_hash_is_the_one_written_down() -> None:
    """MurmurHash3's finaliser in Python integers, as any other kernel must compute it."""
    row, rate, word = 123456789, 0.37, 0xFFFFFFFF
    for key in (0, 1, 2, 77, 10**6):
        x = row ^ (key * 0x9E3779B1 & word)
        x = (x ^ x >> 16) * 0x85EBCA6B & word
        x = (x ^ x >> 13) * 0xC2B2AE35 & word
        x ^= x >> 16
        expected = (x >> 8) >= round(rate * 2**24)
        keys = torch.tensor([key], dtype=torch.int32)
        found = dropout.keep(torch.tensor([row], dtype=torch.int32), keys, rate)
        assert found.item() is expected
