"""Your own similarity, compiled

A similarity is a function of queries and keys, written in plain torch. qkv traces it once,
identifies the axes, differentiates it and compiles it to a kernel that never holds the queries ×
keys matrix. Here it is the negative city-block distance. Eager is the same formula in torch, which
builds a block of queries × keys × features. Times are of this machine, the best of three, forwards
and backwards, once the kernel is compiled.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor

import qkv
from qkv.gallery.durations import by_length
from qkv.gallery.parts import Figure, Part, Result, Step, Table, code_of
from qkv.visualization.plot import palette

SOURCE = "The similarity is yours to choose; Eq. 3"
SIZES = (256, 512, 1024, 2048)
D = 16


def city_block(query: Tensor, key: Tensor) -> Tensor:
    return -(query[:, None] - key[None]).abs().sum(-1)


def one_call() -> Any:
    import torch

    import qkv

    def city_block(query, key):  # type: ignore[no-untyped-def]
        return -(query[:, None] - key[None]).abs().sum(-1)

    x = torch.randn(2048, 16, requires_grad=True)
    answer = qkv.attend(x, x, x, similarity=city_block)
    answer.sum().backward()
    return qkv.explain(x, x, x, similarity=city_block)


def parts() -> Iterator[Part]:
    times: dict[str, list[float]] = {"eager": [], "compiled": []}
    rows = []
    x = torch.randn(SIZES[0], D, requires_grad=True)
    yield Step("tracing, differentiating and compiling the formula")
    start = time.perf_counter()
    _timed(_compiled, x, repeats=1)
    first = time.perf_counter() - start
    for size in SIZES:
        yield Step(f"{size:,} tokens")
        x = torch.randn(size, D, requires_grad=True)
        for name, way in (("eager", _eager), ("compiled", _compiled)):
            times[name].append(_timed(way, x))
        eager, compiled = times["eager"][-1], times["compiled"][-1]
        block = f"{4 * size * size * D / 1e6:,.0f} MB"
        milliseconds = [f"{1e3 * seconds:.1f} ms" for seconds in (eager, compiled)]
        rows.append([f"{size:,}", *milliseconds, f"{eager / compiled:.1f}×", block])
    with torch.no_grad():
        y = x.detach().double()
        apart = (_compiled(y) - _eager(y)).abs().max().item()
    yield Result(
        f"{SIZES[-1]:,} tokens, forwards and backwards: {rows[-1][3]} eager's speed; "
        f"first call {first:.1f} s"
    )
    yield Figure(
        by_length(SIZES, times, (palette.MUTED, palette.ANSWER)),
        "Time by length, eager and compiled",
    )
    yield Table(["tokens", "eager", "compiled", "faster", "block that eager builds"], rows,
                f"The two differ by at most {apart:.0e} in float64")  # fmt: skip
    yield code_of(one_call)


def _eager(x: Tensor) -> Tensor:
    return torch.softmax(city_block(x, x), dim=-1) @ x


def _compiled(x: Tensor) -> Tensor:
    return qkv.attend(x, x, x, similarity=city_block)


def _timed(way: Callable[[Tensor], Tensor], x: Tensor, repeats: int = 3) -> float:
    seconds = []
    for _ in range(repeats):
        x.grad = None
        start = time.perf_counter()
        way(x).sum().backward()
        seconds.append(time.perf_counter() - start)
    return min(seconds)
