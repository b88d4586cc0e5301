"""The multi-head layer

Several heads attend to the same words, each in a projection of its own; their answers are
concatenated and combined by one more matrix (Eq. 14). Untrained heads already look at different
words. The layer loads the weights of PyTorch's own and gives the same answer. With another
similarity the layer has the same structure and another answer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qkv.gallery.parts import Figure, Part, Result, Table, code_of
from qkv.visualization import plot

SOURCE = "Multi head attention; Eq. 14"


def build() -> Any:
    import torch

    import qkv

    torch.manual_seed(2)
    tokens = ["the", "dog", "saw", "its", "owner"]
    words = 2 * torch.randn(1, 5, 32)
    torchs = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    layer = qkv.nn.EncoderLayer(32, 4, 64, dropout=0.0)
    layer.load_state_dict(torchs.state_dict())
    additive = qkv.nn.EncoderLayer(32, 4, 64, dropout=0.0, similarity=qkv.Additive)
    additive.load_state_dict(torchs.state_dict(), strict=False)  # it has more parameters
    with torch.no_grad():
        difference = (layer(words) - torchs(words)).abs().max().item()
        weights = layer.weights(words)[0], additive.weights(words)[0]  # (4 heads, 5, 5) each
    return tokens, weights, difference


def parts() -> Iterator[Part]:
    tokens, (dot, additive), difference = build()
    yield Result(f"scaled dot product: within {difference:.0e} of torch's own layer, same weights")
    for weights, name in ((dot, "scaled dot product"), (additive, "additive")):
        titles = [f"head {head + 1}" for head in range(4)]
        yield Figure(plot.heads(weights, tokens, tokens, titles), f"Four untrained heads: {name}")
    yield Table(
        ["head", *tokens],
        [
            [str(head + 1), *(f"{weight:.2f}" for weight in row)]
            for head, row in enumerate(dot[:, 1])
        ],
        "What “dog” looks at: scaled dot product",
    )
    yield code_of(build)
