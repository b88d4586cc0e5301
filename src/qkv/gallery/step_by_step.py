"""Self-attention, step by step

Words become vectors X, one a row. Three matrices make a query, a key and a value of each word: Q =
XW_Q, K = XW_K, V = XW_V. QKᵀ holds the dot product of each query with each key; divided by √d_Q
and put through softmax, each of its rows sums to 1; times V, each row becomes an answer. The
matrices are random here, where training would have found them. One call does all of it.
"""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table

import qkv
from qkv.gallery.dog import SENTENCE
from qkv.words.sentence import words_of

D_Q, D_V = 8, 6


def show(console: Console) -> None:
    torch.manual_seed(0)
    words, vectors = qkv.words.glove().look_up(word.text for word in words_of(SENTENCE))
    x = torch.from_numpy(vectors)
    layer = qkv.nn.SelfAttention(d=x.shape[1], d_q=D_Q, d_v=D_V)
    with torch.no_grad():
        query, key, value = layer.query(x), layer.key(x), layer.value(x)
        scores = query @ key.T
        scaled = scores / D_Q**0.5
        weights = torch.softmax(scaled, dim=-1)
        answer = weights @ value
        at_once = qkv.attend(query, key, value)
        by_layer = layer(x)
    table = Table("step", "shape", f"its row for {words[6]!r}, first numbers")
    for step, tensor in {
        f"X, {len(words)} words of {x.shape[1]} numbers": x,
        "Q = X W_Q": query,
        "K = X W_K": key,
        "V = X W_V": value,
        "Q Kᵀ": scores,
        "Q Kᵀ / √d_Q": scaled,
        "softmax(Q Kᵀ / √d_Q)": weights,
        "softmax(Q Kᵀ / √d_Q) V": answer,
    }.items():
        numbers = "  ".join(f"{number:5.2f}" for number in tensor[6, :6])
        table.add_row(step, " × ".join(map(str, tensor.shape)), f"{numbers} …")
    console.print(table)
    console.print(f"each row of the weights sums to {weights.sum(-1).mean():.2f}", highlight=False)
    for name, other in (("qkv.attend(Q, K, V)", at_once), ("qkv.nn.SelfAttention", by_layer)):
        apart = (other - answer).abs().max().item()
        console.print(f"{name} differs by at most {apart:.0e}", highlight=False)
