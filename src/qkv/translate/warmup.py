"""Compiling the kernels of search and loss ahead of their first use."""

from __future__ import annotations

import torch

from qkv.translate.loss import smoothed_loss
from qkv.translate.recurrent import Recurrent, Translator
from qkv.translate.search import Search, search


def warmup() -> None:
    """Compile the kernels, or find them on disk."""
    source, lengths = torch.zeros(1, 1, dtype=torch.long), torch.ones(1, dtype=torch.long)
    for dtype in (torch.float32, torch.float64):
        model = Translator(Recurrent(embedding=1, hidden=2), source=5, target=5).to(dtype).eval()
        smoothed_loss(
            torch.zeros(1, 1, dtype=dtype), model.output.weight, model.output.bias, source[0]
        )
        search(model, source, lengths, Search(beam=2, max_length=2))
