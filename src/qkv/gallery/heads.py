"""Many heads, looking elsewhere

The twelve heads of a layer of MiniLM read the same sentence at the same time. Where "happy" looks
most differs from head to head: one looks at the word before it, one at the tail, one at itself.
Entropy, in bits, says over how many words a head spreads; distance, in words, how far it looks.
"""

from __future__ import annotations

import torch
from rich.console import Console
from rich.table import Table

import qkv
from qkv.gallery.dog import QUERY, SENTENCE
from qkv.words.sentence import by_minilm

LAYERS = (0, 5)


def show(console: Console) -> None:
    for layer in LAYERS:
        looking = by_minilm(SENTENCE, layer)
        row = looking.of(QUERY)[0]
        heads = torch.from_numpy(looking.every[0])  # (heads, words, words)
        entropy, distance = qkv.summary.entropy(heads), qkv.summary.distance(heads)
        title = f"layer {layer}: what {QUERY} looks at"
        table = Table("head", "most at", "", "", "entropy", "distance", title=title)
        for head, weights in enumerate(heads):
            best = weights[row].topk(3)
            most = [
                f"{looking.words[key]} {weight:.2f}"
                for weight, key in zip(best.values.tolist(), best.indices.tolist(), strict=True)
            ]
            table.add_row(str(head), *most, f"{entropy[head]:.1f}", f"{distance[head]:.1f}")
        console.print(table)
    console.print("; ".join(looking.notes[1:]), style="dim", highlight=False)
