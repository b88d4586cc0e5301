"""Sparse attention: cost against length

A window lets each token see 64 neighbours to either side, so the work grows with the length, not
with its square. The operator computes nothing outside of the window's band: no score is computed
only to be masked. Both take the same mask objects, and the answers within the band are exact. Times
are of this machine, the best of three.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch

import qkv
from qkv.gallery.durations import by_length
from qkv.gallery.parts import Figure, Part, Result, Step, Table, code_of
from qkv.visualization.plot import palette

SOURCE = "Sparse Attention"
LENGTHS = (512, 1024, 2048, 4096, 8192)
HEADS, D, SIDE = 2, 64, 64


def one_call() -> Any:
    import torch

    import qkv

    x = torch.randn(1, 2, 8192, 64)
    near = qkv.mask.Window(64, 64)
    answer = qkv.attend(x, x, x, mask=near)
    plan = qkv.explain(x, x, x, mask=near)
    return answer, plan


def parts() -> Iterator[Part]:
    masks = {"all keys": None, "window": qkv.mask.Window(SIDE, SIDE)}
    times: dict[str, list[float]] = {name: [] for name in masks}
    rows = []
    for length in LENGTHS:
        yield Step(f"{length:,} tokens")
        x = torch.randn(1, HEADS, length, D)
        for name, mask in masks.items():
            times[name].append(_best(x, mask))
        ratio = times["all keys"][-1] / times["window"][-1]
        pairs = sum(min(length, place + SIDE + 1) - max(0, place - SIDE) for place in range(length))
        milliseconds = [f"{1e3 * times[name][-1]:.1f} ms" for name in masks]
        rows.append([f"{length:,}", f"{pairs / length**2:.1%}", *milliseconds, f"{ratio:.1f}×"])
    plan = qkv.explain(x, x, x, mask=masks["window"])
    yield Result(
        f"{LENGTHS[-1]:,} tokens: a window of {SIDE} to either side takes {rows[-1][3]}, "
        f"all keys {rows[-1][2]}"
    )
    yield Figure(
        by_length(LENGTHS, times, (palette.QUERY, palette.ANSWER)),
        "Time by length: all keys grow with its square, a window does not",
    )
    yield Table(["tokens", "pairs seen", "all keys", f"window, by {plan.operator}", "faster"], rows)
    yield code_of(one_call)


def _best(x: torch.Tensor, mask: Any) -> float:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        qkv.attend(x, x, x, mask=mask)
        seconds.append(time.perf_counter() - start)
    return min(seconds)
