"""Look-ups by equality, and scores that know positions, against their peers."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import torch
import torch.nn.functional as F

import qkv
from qkv.benchmarks import Figure
from qkv.benchmarks.measure import can_measure_memory, peak_extra_bytes, seconds
from qkv.bias import Alibi, alibi_slopes

ROWS = 100_000
HEADS, N, D = 8, 4096, 64


def measure() -> Iterator[Figure]:
    torch.manual_seed(0)
    for part in PARTS.values():
        yield from part()


def _equal() -> Iterator[Figure]:
    """The mean of what is joined, against a join alone."""
    pd: Any = import_module("pandas")
    query, key = (torch.randint(0, ROWS, (ROWS, 1)).float() for _ in range(2))
    value = torch.randn(ROWS, 1)
    left = pd.DataFrame({"key": query[:, 0].numpy()})
    right = pd.DataFrame({"key": key[:, 0].numpy(), "value": value[:, 0].numpy()})
    theirs, ours = seconds(
        lambda: left.merge(right, on="key", how="left"),
        lambda: qkv.attend(query, key, value, similarity="equal"),
        least=2.0,
    )
    work = f"Equal, {ROWS:,} × {ROWS:,}, against pandas' merge of the same keys"
    yield Figure(work, ours / theirs, "×", "≤ 3", f"{1e3 * ours:.2g} ms")


def _alibi() -> Iterator[Figure]:
    """ALiBi with the scaled dot product, against SDPA with the bias as a tensor."""
    query, key, value = (torch.randn(1, HEADS, N, D) for _ in range(3))
    bias = Alibi(alibi_slopes(HEADS).float())
    position = torch.arange(N)
    full = bias(position[:, None], position).unsqueeze(0)  # (1, heads, n, n): half a gigabyte
    ahead = full.masked_fill(torch.ones(N, N, dtype=torch.bool).triu(1), -torch.inf)
    work = f"ALiBi + scaled dot, {HEADS} heads, n = {N:,}, against SDPA with the bias as a tensor"

    def theirs(mask: torch.Tensor = full) -> torch.Tensor:
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask)

    def ours(mask: Any = None) -> torch.Tensor:
        return qkv.attend(query, key, value, mask=mask, bias=bias)

    with torch.no_grad():
        expected, taken = seconds(theirs, ours, least=4.0)
        yield Figure(f"{work}, forward", taken / expected, "×", "≤ 1.1", f"{taken:.2g} s")
        if can_measure_memory():
            held = peak_extra_bytes(ours) / 1e6
            yield Figure("… memory beside the arguments", held, "MB", "≤ 100")
        expected, taken = seconds(lambda: theirs(ahead), lambda: ours(qkv.mask.Causal()), least=3.0)
        yield Figure("… under Causal, forward", taken / expected, "×", "", f"{taken:.2g} s")
    tensors = [tensor.requires_grad_() for tensor in (query, key, value)]
    expected, taken = seconds(
        lambda: torch.autograd.grad(theirs().sum(), tensors),
        lambda: torch.autograd.grad(ours().sum(), tensors),
        least=4.0,
        rounds=3,
    )
    yield Figure("… forward and backward", taken / expected, "×", "", f"{taken:.2g} s")


def _learned() -> Iterator[Figure]:
    """Slopes that are learned, both ways, against SDPA that is handed their product as a tensor."""
    tokens = [torch.randn(1, HEADS, N, D).requires_grad_() for _ in range(3)]
    query, key, value = tokens
    slopes = alibi_slopes(HEADS).float().requires_grad_()
    distance = (torch.arange(N)[:, None] - torch.arange(N)).abs().float()

    def theirs() -> Any:
        mask = -slopes[:, None, None] * distance
        answer = F.scaled_dot_product_attention(query, key, value, attn_mask=mask.unsqueeze(0))
        return torch.autograd.grad(answer.sum(), [*tokens, slopes])

    def ours() -> Any:
        return torch.autograd.grad(
            qkv.attend(query, key, value, bias=Alibi(slopes)).sum(), [*tokens, slopes]
        )

    expected, taken = seconds(theirs, ours, least=4.0, rounds=3)
    work = f"learned ALiBi + scaled dot, {HEADS} heads, n = {N:,}, both ways, against SDPA"
    yield Figure(work, taken / expected, "×", "≤ 1.1", f"{taken:.2g} s")
    if can_measure_memory():
        megabytes = peak_extra_bytes(ours) / 1e6
        yield Figure("… memory beside the arguments", megabytes, "MB", "≤ 200")


PARTS = {"equal": _equal, "alibi": _alibi, "learned": _learned}
