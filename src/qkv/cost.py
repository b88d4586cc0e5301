"""How long an operator takes, estimated from shapes: one line of numbers for each kind of work.

    seconds = call + row · rows + number · numbers + pair · pairs + product · products + fresh · …

Most numbers were measured by ``qkv bench crossover``; ``QKV_COSTS`` may point to a file of a
machine's own. Work is divided by threads as many as there were when it was measured.
"""

from __future__ import annotations

import json
import math
import os
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import torch

from qkv.memory import TILE_BYTES
from qkv.problem import Problem


class Line(NamedTuple):
    """The cost of one kind of work in seconds: once, and for each …"""

    call: float
    row: float = 0.0  # query: what is done again for each, over keys as few as may be
    number: float = 0.0  # number in queries, keys, values and answers
    pair: float = 0.0  # pair of a query and a key
    product: float = 0.0  # feature of a pair
    fresh: float = 0.0  # number held at once for all pairs beyond what the caches hold

    def seconds(self, work: Work) -> float:
        return sum(cost * amount for cost, amount in zip(self, work, strict=True))


class Work(NamedTuple):
    """The amounts that a :class:`Line` prices."""

    calls: float
    rows: float
    numbers: float
    pairs: float
    products: float
    fresh: float


#: Threads with which LINES were measured.
THREADS = 2
#: So much longer our own dot products take without AVX-512. PyTorch's, which they are up against,
#: do not: a library multiplies matrices for them.
NARROW_VECTORS = 1.4

#: operator/family/direction, and mask/operator/direction. Those of dense, sdpa, fused, lookup and
#: masks were fitted to 1,500 problems, random ones and those of `qkv bench noregret`, on two cores
#: of an AMD EPYC (Zen 5, AVX-512), as `qkv bench crossover --costs` fits them, and then moved in
#: small steps while the choices among these problems became better. The others are rough guesses
#: that order operators which differ by much.
LINES: dict[str, Line] = {
    "dense/dot/forward": Line(2.4e-05, 1.1e-08, 7.4e-11, 6.7e-10, 5e-12, 3.4e-11),
    "dense/dot/both ways": Line(6.1e-05, 2.2e-08, 2.8e-10, 1e-09, 1.5e-11, 4.3e-10),
    "dense/additive/forward": Line(7.7e-05, 1.2e-08, 2.6e-10, 3.8e-09, 9.6e-11),
    "dense/additive/both ways": Line(0.00023, 0, 1.2e-09, 4.1e-09, 8.4e-10, 3.3e-10),
    "dense/gated/forward": Line(5.3e-05, 1.7e-08, 1.8e-10, 8.1e-10, 1e-12, 1.1e-10),
    "dense/gated/both ways": Line(0.00017, 0, 6.8e-10, 2.2e-09, 2.2e-11, 9.2e-11),
    "dense/distance/forward": Line(4.3e-05, 1.8e-08, 8.9e-11, 1e-09, 4.2e-11, 2.2e-10),
    "dense/distance/both ways": Line(0.00016, 3.7e-08, 9.8e-10, 4.6e-09, 5.5e-11),
    "dense/equal/forward": Line(6.3e-05, 1.7e-09, 1.6e-10, 1e-09, 5.7e-11, 1.1e-10),
    "dense/equal/both ways": Line(0.00015, 0, 2.6e-10, 1.9e-09, 7.6e-11),
    "dense/steps/forward": Line(4.9e-05, 5e-09, 8.8e-11, 9.6e-10, 4.1e-11, 1.7e-10),
    "dense/steps/both ways": Line(0.00013, 0, 1.9e-10, 1.7e-09, 4.6e-11, 5.3e-11),
    "dense/any/forward": Line(4.3e-05, 2.9e-08, 7.3e-11, 2.5e-09, 3.7e-12, 3.2e-10),
    "dense/any/both ways": Line(0.00012, 5e-08, 2.4e-10, 3.2e-09, 1.3e-10, 9.8e-10),
    "sdpa/dot/forward": Line(3e-05, 2.6e-08, 1e-10, 5.1e-10, 5.9e-12),
    "sdpa/dot/both ways": Line(0.00012, 5.5e-08, 5.1e-10, 2.2e-09, 1.4e-11),
    "fused/dot/forward": Line(3.9e-05, 1.1e-08, 2.1e-10, 9.5e-11, 5e-12),
    "fused/dot/both ways": Line(0.00019, 7.4e-09, 6.5e-10, 6.1e-10, 3.1e-11),
    "fused/additive/forward": Line(6e-05, 3.7e-08, 2.8e-10, 2.1e-10, 1.2e-11),
    "fused/additive/both ways": Line(0.00027, 6.6e-08, 1.7e-09, 3.2e-09, 2.9e-11),
    "fused/gated/forward": Line(5.6e-05, 1.9e-08, 3.1e-10, 3.5e-10, 5.1e-12),
    "fused/gated/both ways": Line(0.00027, 3.7e-08, 1.6e-09, 1e-09, 3.6e-11),
    "fused/distance/forward": Line(3.6e-05, 1.4e-08, 1.2e-10, 1.9e-10, 1.3e-11),
    "fused/distance/both ways": Line(0.00016, 4.2e-08, 6.2e-10, 7.8e-10, 4.5e-11),
    "fused/steps/forward": Line(3.6e-05, 1.5e-08, 1.3e-10, 2.9e-10, 8.7e-12),
    "fused/steps/both ways": Line(0.00014, 4.3e-08, 1.9e-10, 6.3e-10, 2.3e-11),
    # What comes on top of these, whatever the similarity.
    "mask/dense/forward": Line(2.1e-05, 0, 0, 3.2e-10),
    "mask/dense/both ways": Line(4.8e-05, 0, 0, 5e-10),
    "mask/sdpa/forward": Line(3.8e-05, 0, 0, 2.4e-10),
    "mask/sdpa/both ways": Line(8.5e-05, 1.8e-08, 6.3e-11, 6.3e-11, 8.7e-12),
    "mask/fused/forward": Line(1.9e-05, 0, 2.1e-13, 1.7e-10, 3.1e-13),
    "mask/fused/both ways": Line(4.1e-05, 3.2e-09, 3.5e-11, 2.8e-11, 2e-13),
    "total/any/forward": Line(25e-6, 0, 0, 0.46e-9),
    "total/any/both ways": Line(60e-6, 0, 0, 1e-9),
    "rank/any/forward": Line(15e-6, 0, 0, 30e-9),
    "rank/any/both ways": Line(15e-6, 0, 0, 30e-9),
    "dropout/any/forward": Line(30e-6, 0, 0, 4e-9),
    "dropout/any/both ways": Line(50e-6, 0, 0, 6e-9),
    "centre/any/forward": Line(55e-6, 0, 0.5e-9, 0.08e-9),
    "centre/any/both ways": Line(125e-6, 0, 1.5e-9),
    "tile/any/forward": Line(30e-6),
    "tile/any/both ways": Line(150e-6),
    "topk/any/forward": Line(75e-6, 60e-9, 0.5e-9, 6e-9, 0.01e-9),
    "topk/any/both ways": Line(250e-6, 200e-9, 1e-9, 6e-9, 0.01e-9),
    "lookup/any/forward": Line(0.00015, 0, 9.4e-10, 3.1e-10),
    "lookup/any/both ways": Line(0.0004, 0, 2.3e-09, 3.1e-10, 9.8e-13),
    "sorted/any/forward": Line(75e-6, 0, 15e-9),
}


def seconds(
    problem: Problem,
    operator: str,
    family: str | None = None,
    share: float = 1.0,
    reused: bool = False,
) -> float:
    """The time of `operator` for a problem of which the `share` of pairs counts; inf: unknown."""
    direction = "both ways" if problem.needs_grad else "forward"
    name = f"{operator}/{problem.similarity.family if family is None else family}/{direction}"
    lines, threads, now, narrow = LINES, THREADS, THREADS, True
    if not torch.compiler.is_compiling():  # a graph is to be the same on every machine
        (lines, threads), now = _lines(), torch.get_num_threads()
        narrow = lines is LINES and not _has_wide_vectors()
    if name not in lines:
        return math.inf
    slower = threads / now
    if narrow and name.startswith("fused/dot/"):
        slower *= NARROW_VECTORS
    amounts = work(problem, share, slower)
    return lines[name].seconds(amounts._replace(fresh=0.0) if reused else amounts)


def idle(units: int) -> float:
    """How much longer work takes whose `units` are shared out, none of them among threads."""
    threads = THREADS if torch.compiler.is_compiling() else torch.get_num_threads()
    return math.ceil(units / threads) * threads / units


@cache
def _has_wide_vectors() -> bool:
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


def work(problem: Problem, share: float = 1.0, slower: float = 1.0) -> Work:
    """The amounts of a problem, of whose pairs a share counts, on threads so much slower."""
    entries = math.prod(problem.batch)
    d, d_v = problem.dim, problem.value.shape[-1]
    pairs = problem.pairs * share * slower
    return Work(
        1.0,
        entries * problem.n * slower,
        entries * (problem.n + problem.m) * (d + d_v) * slower,
        pairs,
        pairs * (d + d_v),
        max(0.0, problem.pairs * (problem.similarity.pair_width(d) + 2) - TILE_BYTES / 4),
    )


def as_json(lines: dict[str, Line], threads: int) -> str:
    """What ``QKV_COSTS`` may point to."""
    rows = {name: line._asdict() for name, line in lines.items()}
    return json.dumps({"threads": threads, "lines": rows}, indent=1) + "\n"


@cache
def _lines() -> tuple[dict[str, Line], int]:
    """The lines in use, read once a process, and the threads with which they were measured."""
    chosen = os.environ.get("QKV_COSTS")
    if not chosen:
        return LINES, THREADS
    return _read(Path(chosen))


def _read(path: Path) -> tuple[dict[str, Line], int]:
    wanted = "QKV_COSTS must name a file that `qkv bench crossover --costs` wrote"
    try:
        held: Any = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{wanted}; {path}: {error}") from None
    try:
        threads, rows = held["threads"], dict(held["lines"])
        lines = {name: Line(**row) for name, row in rows.items()}
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"{wanted}; {path} holds something else") from None
    numbers = [number for line in lines.values() for number in line]
    if not isinstance(threads, int) or threads < 1:
        raise ValueError(f"{wanted}; {path} was measured with {threads!r} threads")
    for number in numbers:
        if not isinstance(number, float | int) or not 0 <= number < math.inf:
            raise ValueError(f"{wanted}; {path} holds {number!r} where seconds are wanted")
    unknown = sorted(lines.keys() - LINES.keys())
    if unknown:
        raise ValueError(f"{wanted}; {path} prices {unknown[0]!r}, which is no kind of work")
    return LINES | lines, threads
