"""The attention matrix of a few tokens

Each token takes its turn as the query; every row says how much it attends to each of the others
and to itself, and sums to 1. The tokens are random vectors here; the matrix is
softmax(QKᵀ/√d), first over all tokens, then looking back only.
"""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table

import qkv
from qkv.gallery import print_plan
from qkv.terminal import rows

TOKENS = ["the", "dog", "saw", "its", "owner"]


def show(console: Console) -> None:
    generator = torch.Generator().manual_seed(3)
    x = 0.9 * torch.randn(len(TOKENS), 8, generator=generator)  # (n, d)
    for title, mask in (("all see all", None), ("looking back only", qkv.mask.Causal())):
        weights = qkv.weights(x, x, mask=mask)
        table = Table("", *TOKENS, "sum", title=title, title_justify="left")
        for token, row, cells in zip(TOKENS, weights, rows(weights.numpy()), strict=True):
            table.add_row(token, *cells, f"{row.sum().item():.2f}")
        console.print(table)
        print_plan(console, qkv.explain(x, x, x, mask=mask))
