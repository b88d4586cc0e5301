"""Work over many places, shared out among threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from qkv.operators.fused import threads


def share_out(count: int, most: int, least: int, run: Callable[[int, int], None]) -> None:
    """Have `run(start, stop)` called for all of `count` places, `least` to `most` at a time."""
    if count == 0:
        return
    available = torch.get_num_threads()
    size = min(most, max(least, -(-count // available)))
    chunks = itertools.count(0, size)

    def task() -> None:
        # Drawing a number is one step under the interpreter's lock, so threads share it.
        while (start := next(chunks)) < count:
            run(start, min(start + size, count))

    threads.run(task, min(available, -(-count // size)))
