"""Many heads, looking elsewhere

The twelve heads of a layer of MiniLM read the same sentence at the same time. Where "happy" looks
most differs from head to head: some look at the tail, some at the owner, some at the word itself.
Entropy, in bits, measures over how many words a head spreads; distance, in words, how far it looks.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from qkv.gallery.dog import QUERY
from qkv.gallery.parts import Figure, Part, Result, Table, code_of
from qkv.visualization import plot

SOURCE = "Multiheaded attention; Eq. 14"


def read() -> Any:
    import torch

    import qkv
    from qkv.words.sentence import by_minilm

    sentence = "When he saw his owner, the dog was happy, so he wagged his tail"
    looking = by_minilm(sentence, layer=5)
    heads = torch.from_numpy(looking.every[5])  # (12 heads, 14 words, 14 words)
    entropy, distance = qkv.summary.entropy(heads), qkv.summary.distance(heads)
    return looking, heads, entropy, distance


def parts() -> Iterator[Part]:
    looking, heads, entropy, distance = read()
    row = looking.of(QUERY)[0]
    rows, first = [], set()
    for head, weights in enumerate(heads):
        best = weights[row].topk(3)
        pairs = zip(best.values.tolist(), best.indices.tolist(), strict=True)
        most = [f"{looking.words[key]} {weight:.2f}" for weight, key in pairs]
        first.add(most[0].split()[0])
        rows.append([str(head), *most, f"{entropy[head]:.1f}", f"{distance[head]:.1f}"])
    yield Result(f"12 heads of one layer: “happy” looks first at {', '.join(sorted(first))}")
    yield Figure(
        plot.heads(heads, looking.words, looking.words),
        "Layer 5 of MiniLM: twelve heads, the same sentence; rows ask, columns are looked at",
    )
    yield Table(["head", "most at", "then", "then", "entropy", "distance"], rows)
    yield code_of(read)
