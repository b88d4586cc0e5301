"""Why 1/√d

The dot product of two random vectors of unit variance has variance d. Unscaled, scores grow with
the dimension until softmax puts all weight on one key, and no gradient gets through to the
others. Divided by √d their variance stays 1, and so does the share of attention each key gets.
Entropy is in bits; 16 keys that share equally have 4.
"""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table

import qkv

KEYS, QUERIES = 16, 2000
DIMENSIONS = (4, 16, 64, 256, 1024)


def measured(similarity: qkv.Similarity, d: int) -> tuple[float, float]:
    """The variance of the scores, and the entropy of the weights, of random tokens of size d."""
    generator = torch.Generator().manual_seed(d)
    query = torch.randn(QUERIES, d, generator=generator)
    key = torch.randn(KEYS, d, generator=generator)
    scores = similarity(query, key)
    weights = qkv.weights(query, key, similarity=similarity)
    return scores.var().item(), qkv.summary.entropy(weights).item()


def show(console: Console) -> None:
    table = Table("d", "variance of qᵀk", "entropy", "variance of qᵀk/√d", "entropy")
    for d in DIMENSIONS:
        plain, scaled = measured(qkv.Dot(), d), measured(qkv.ScaledDot(), d)
        table.add_row(str(d), *(f"{number:.2f}" for number in (*plain, *scaled)))
    console.print(table)
