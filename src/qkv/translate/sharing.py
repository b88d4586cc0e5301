"""Work on the rows of arrays, shared out among torch's threads."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch

from qkv.operators.fused import threads


def share_out(rows: int, work: Callable[[slice], None]) -> None:
    """Have `work` done on all rows, some at a time, by several threads."""
    available = torch.get_num_threads()
    size = max(1, -(-rows // (2 * available)))
    starts = itertools.count(0, size)

    def task() -> None:
        # Drawing a number is one step under the interpreter's lock, so threads share it.
        while (start := next(starts)) < rows:
            work(slice(start, min(start + size, rows)))

    threads.run(task, available)
