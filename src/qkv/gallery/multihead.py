"""The multi-head layer

Several heads ask the same words, each in a projection of its own; their answers are put side by
side, combined by one more matrix, and fed forward. Untrained heads already look at different
words. The layer loads the weights of PyTorch's own, and with another similarity it is the same
layer with another idea of "alike".
"""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table
from torch import nn

import qkv
from qkv.nn import EncoderLayer, HeadSimilarity
from qkv.terminal import rows

TOKENS = ["the", "dog", "saw", "its", "owner"]
D, HEADS, D_FF = 32, 4, 64

SIMILARITIES: dict[str, HeadSimilarity] = {"ScaledDot": None, "Additive": qkv.Additive}


def show(console: Console) -> None:
    torch.manual_seed(2)
    words = 2 * torch.randn(1, len(TOKENS), D)
    theirs = nn.TransformerEncoderLayer(D, HEADS, D_FF, dropout=0.0, batch_first=True)
    for name, similarity in SIMILARITIES.items():
        layer = EncoderLayer(D, HEADS, D_FF, dropout=0.0, similarity=similarity)
        layer.load_state_dict(theirs.state_dict(), strict=similarity is None)
        with torch.no_grad():
            weights = layer.weights(words)[0, :, 1]  # what "dog" looks at, (heads, n)
            distance = (layer(words) - theirs(words)).abs().max().item()
        table = Table("head", *TOKENS, title=f"what dog looks at: {name}", title_justify="left")
        for head, cells in enumerate(rows(weights.numpy()), start=1):
            table.add_row(str(head), *cells)
        console.print(table)
        console.print(f"farthest from torch's layer with the same weights: {distance:.1e}\n")
