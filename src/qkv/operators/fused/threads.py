"""A small pool of threads for kernels that release the interpreter's lock.

Numba's own parallel layers will not do: OpenMP kills a forked child, and the workqueue aborts
when two Python threads call at once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

_pool: ThreadPoolExecutor | None = None


def _forget() -> None:
    """In a forked child the parent's threads do not exist."""
    global _pool
    _pool = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)


def _executor() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        # Threads start when needed and block while idle. Two callers racing here leave one pool
        # unused, which costs nothing.
        _pool = ThreadPoolExecutor(max(64, os.cpu_count() or 1), thread_name_prefix="qkv")
    return _pool


def run(task: Callable[[], None], count: int) -> None:
    """Run `task` on up to `count` threads at once, the calling thread being one of them.

    The task draws its work from a shared counter and returns when none is left, so a helper that
    has not started by the time the caller is done is not needed any more.
    """
    helpers: list[Future[None]] = []
    if count > 1:
        with contextlib.suppress(RuntimeError):  # at interpreter shutdown: no new threads
            helpers.extend(_executor().submit(task) for _ in range(count - 1))
    try:
        task()
    finally:
        for helper in helpers:
            if not helper.cancel():
                helper.result()
