"""A task that nothing but attention solves: look up a key that stood earlier in the sequence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import qkv
from qkv.nn import Embedding, Encoder, EncoderLayer

KEYS, VALUES, D, HEADS = 5, 7, 32, 2
HEAD = D // HEADS

SIMILARITIES: dict[str, Any] = {
    "dot": "dot",
    "scaled_dot": None,
    "cosine": qkv.Cosine(temperature=0.1),
    "bilinear": qkv.Bilinear,
    "additive": qkv.Additive,
    "gated": qkv.Gated,
    "euclidean": "euclidean",
    "gaussian": "gaussian",
    "gaussian, learned": qkv.Gaussian(bandwidth=1.0, learnable=True),
    "laplacian": "laplacian",
    # Beyond its bandwidth a compact kernel has no gradient, so these start wide.
    "triangular": qkv.Triangular(bandwidth=2.0),
    "epanechnikov": qkv.Epanechnikov(bandwidth=8.0),
}


def questions(batch: int) -> tuple[Tensor, Tensor]:
    """Each key once with a value of its own, (key, value) being one token; then a key alone."""
    keys = torch.rand(batch, KEYS).argsort(-1)
    values = torch.randint(VALUES, (batch, KEYS))
    asked = torch.randint(KEYS, (batch, 1))
    tokens = torch.cat([keys * VALUES + values, KEYS * VALUES + keys.gather(1, asked)], dim=1)
    return tokens, values.gather(1, asked).squeeze(1)


def exact(encoder: Encoder, head: nn.Linear) -> float:
    tokens, answers = questions(1000)
    with torch.no_grad():
        return (head(encoder(tokens)[:, -1]).argmax(-1) == answers).double().mean().item()


# Boxcar and equal are steps: their gradient is 0 everywhere, and nothing can learn through them.
@pytest.mark.parametrize("similarity", SIMILARITIES.values(), ids=SIMILARITIES)
def test_every_similarity_learns_to_look_up(similarity: Any) -> None:
    embedding = Embedding(KEYS * VALUES + KEYS, D)
    nn.init.normal_(embedding.words.weight, std=0.1)  # near each other, as distances want it
    layer = EncoderLayer(D, HEADS, 64, dropout=0.0, similarity=similarity)
    encoder, head = Encoder(embedding, [layer]), nn.Linear(D, VALUES)
    optimiser = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=0.003)
    for step in range(1500):
        tokens, answers = questions(64)
        optimiser.zero_grad()
        F.cross_entropy(head(encoder(tokens)[:, -1]), answers).backward()
        optimiser.step()
        if step % 50 == 49 and exact(encoder, head) > 0.995:
            break
    assert exact(encoder, head) > 0.99
