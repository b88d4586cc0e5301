"""A mask says which keys each query may attend to

Each token takes its turn as the query; every row says how much it attends to each of the others
and to itself, and sums to 1. First all tokens see all; then each looks back only, as in a language
model that must not see what it is to predict. The tokens are random vectors here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qkv.gallery.parts import Figure, Part, Result, Text, code_of
from qkv.visualization import plot

SOURCE = "Self Attention, Intuition; Eq. 11"


def look() -> Any:
    import torch

    import qkv

    tokens = ["the", "dog", "saw", "its", "owner"]
    x = 0.9 * torch.randn(5, 8, generator=torch.Generator().manual_seed(3))
    everyone = qkv.weights(x, x)
    back = qkv.weights(x, x, mask=qkv.mask.Causal())
    plan = qkv.explain(x, x, x, mask=qkv.mask.Causal())
    return tokens, everyone, back, plan


def parts() -> Iterator[Part]:
    import torch

    tokens, everyone, back, plan = look()
    yield Result(
        f"“saw” gives “dog” {everyone[2, 1]:.2f} of its attention, and {back[2, 1]:.2f} where it "
        "may not look ahead"
    )
    yield Figure(
        plot.heads(torch.stack([everyone, back]), tokens, tokens, ["all see all", "looking back"]),
        "The same tokens without a mask and under Causal()",
    )
    yield Text(f"Planned as: {plan.operator}; {plan.reason}.")
    yield code_of(look)
