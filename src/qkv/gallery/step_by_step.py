"""Self-attention, step by step

Words become vectors X, one a row. Three matrices make a query, a key and a value of each word: Q =
XW_Q, K = XW_K, V = XW_V. QKᵀ holds the dot product of each query with each key; divided by √d_Q
and put through softmax, each of its rows sums to 1; times V, each row becomes an answer, of d_V
numbers. The matrices are random here, where training would have found them. One call does it all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qkv.gallery.parts import Figure, Part, Result, Table, code_of
from qkv.visualization import plot

SOURCE = "Self Attention, Math; Eq. 11"
PLACE = 6  # of the word whose numbers are shown


def steps() -> Any:
    import torch

    import qkv

    torch.manual_seed(0)
    sentence = "When he saw his owner the dog was happy so he wagged his tail"
    words, vectors = qkv.words.glove().look_up(sentence.split())
    x = torch.from_numpy(vectors)
    layer = qkv.nn.SelfAttention(d=50, d_q=8, d_v=6)
    with torch.no_grad():
        query, key, value = layer.query(x), layer.key(x), layer.value(x)
        scores = query @ key.T
        scaled = scores / 8**0.5
        weights = torch.softmax(scaled, dim=-1)
        answer = weights @ value
        at_once = qkv.attend(query, key, value)
        by_layer = layer(x)
    return words, (x, query, key, value, scores, scaled, weights, answer), (at_once, by_layer)


def parts() -> Iterator[Part]:
    words, tensors, others = steps()
    *_, weights, answer = tensors
    apart = max((other - answer).abs().max().item() for other in others)
    yield Result(f"eight steps, or one call of qkv.attend: they differ by at most {apart:.0e}")
    names = ["X", "Q = XW_Q", "K = XW_K", "V = XW_V", "QKᵀ", "QKᵀ/√d_Q", "softmax(QKᵀ/√d_Q)",
             "softmax(QKᵀ/√d_Q) V"]  # fmt: skip
    rows = [
        [name, " × ".join(map(str, tensor.shape)),
         "  ".join(f"{number:5.2f}" for number in tensor[PLACE, :5]) + " …"]
        for name, tensor in zip(names, tensors, strict=True)
    ]  # fmt: skip
    yield Table(["step", "shape", f"its row for “{words[PLACE]}”"], rows)
    yield Figure(
        plot.matrix(weights.numpy(), words, words, title="softmax(QKᵀ/√d_Q)"),
        "The weights: a row for each query, a column for each key; each row sums to 1",
    )
    yield code_of(steps)
