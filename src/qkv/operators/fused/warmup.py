"""Compiling every kernel ahead of its first use, a process for each core."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed

from qkv.operators.fused.arguments import OPERANDS
from qkv.operators.fused.kernels import machine_code
from qkv.operators.fused.ops import KINDS


def warmup(progress: Callable[[str], None] | None = None) -> None:
    """Compile every kernel, or find it on disk; `progress` hears of each one that is ready."""
    kernels = [(kind, dtype) for kind in KINDS for dtype in ("float32", "float64")]
    workers = min(len(kernels), os.cpu_count() or 1)
    with ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")) as pool:
        pending = {pool.submit(load, *kernel): kernel for kernel in kernels}
        for count, ready in enumerate(as_completed(pending), start=1):
            ready.result()
            if progress is not None:
                progress(f"{', '.join(pending[ready])} ({count} of {len(kernels)})")


def load(kind: str, dtype: str) -> None:
    """Compile the kernels of one kind and type, forwards and backwards, or find them on disk."""
    for way in OPERANDS:
        machine_code(kind, way, dtype)
