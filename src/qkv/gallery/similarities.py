"""Every similarity on the same tokens

The same 1,000 tokens ask each other under every similarity. What one token attends to is shown by
its heaviest weight and by how many tokens share its attention (2 to the entropy of its weights);
the plan says which operator answered, the time what that took here once its kernel was loaded.
"""

from __future__ import annotations

import time

import torch
from rich.console import Console
from rich.table import Table

import qkv

N, D = 1000, 16


def similarities() -> dict[str, qkv.Similarity]:
    """All of them, the learned ones as they are before any training."""
    torch.manual_seed(0)
    return {
        "Dot": qkv.Dot(),
        "ScaledDot": qkv.ScaledDot(),
        "Cosine": qkv.Cosine(temperature=0.1),
        "Bilinear": qkv.Bilinear(D, D),
        "Additive": qkv.Additive(D, D, 32),
        "Gated": qkv.Gated(D, D),
        "Euclidean": qkv.Euclidean(),
        "Gaussian": qkv.Gaussian(bandwidth=2.0),
        "Laplacian": qkv.Laplacian(bandwidth=0.5),
        "Boxcar": qkv.Boxcar(bandwidth=4.0),
        "Triangular": qkv.Triangular(bandwidth=4.0),
        "Epanechnikov": qkv.Epanechnikov(bandwidth=4.0),
        "Equal": qkv.Equal(),
    }


def show(console: Console) -> None:
    x = torch.randn(N, D, generator=torch.Generator().manual_seed(1))
    table = Table("similarity", "heaviest weight", "tokens that share", "operator", "time")
    for name, similarity in similarities().items():
        with torch.no_grad():
            weights = qkv.weights(x, x, similarity=similarity, rows=slice(0, 1))[0]
            with console.status(f"{name}: a kernel's first use ever compiles it"):
                qkv.attend(x, x, x, similarity=similarity)
            start = time.perf_counter()
            qkv.attend(x, x, x, similarity=similarity)
            taken = time.perf_counter() - start
            operator = qkv.explain(x, x, x, similarity=similarity).operator
        sharing = torch.special.entr(weights).sum().exp().item()
        cells = f"{weights.max().item():.3f}", f"{sharing:.0f}", operator, f"{taken * 1e3:.1f} ms"
        table.add_row(name, *cells)
    console.print(table)
