"""Look-ups by equality, and scores that know positions, against their peers."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch

import qkv
from qkv.benchmarks import Figure
from qkv.benchmarks.measure import seconds

ROWS = 100_000


def measure() -> Iterator[Figure]:
    torch.manual_seed(0)
    yield from figures()


def figures() -> Iterator[Figure]:
    yield from _equal()


def _equal() -> Iterator[Figure]:
    """The mean of what is joined, against a join alone."""
    pd: Any = import_module("pandas")
    query, key = (torch.randint(0, ROWS, (ROWS, 1)).float() for _ in range(2))
    value = torch.randn(ROWS, 1)
    left = pd.DataFrame({"key": query[:, 0].numpy()})
    right = pd.DataFrame({"key": key[:, 0].numpy(), "value": value[:, 0].numpy()})
    theirs, ours = seconds(
        lambda: left.merge(right, on="key", how="left"),
        lambda: qkv.attend(query, key, value, similarity="equal"),
        least=2.0,
    )
    work = f"Equal, {ROWS:,} × {ROWS:,}, against pandas' merge of the same keys"
    yield Figure(work, ours / theirs, "×", "≤ 3", f"{1e3 * ours:.2g} ms")
