"""Threads for kernels that release the interpreter's lock: torch's own team, or a pool of ours.

Torch's OpenMP workers spin for milliseconds after each of its operations, on the cores that other
threads would need: a pool beside them runs at half speed. So the kernels join that team, through
the entry point that compiled parallel regions call. In a forked child the team does not exist, and
some builds of torch have another; a pool of Python threads serves there.

Numba's own parallel layers will not do: OpenMP kills a forked child, and the workqueue aborts
when two Python threads call at once.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

Task = Callable[[], None]

_pool: ThreadPoolExecutor | None = None
_forked = False


def _after_fork() -> None:
    """In a forked child the parent's threads do not exist."""
    global _pool, _forked
    _pool = None
    _forked = True


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@ctypes.CFUNCTYPE(None, ctypes.py_object)
def _call(task: Task) -> None:
    task()


#: A C function of one pointer, which does not call Python.
Native = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@cache
def _parallel(function: Any, data: Any) -> Callable[..., None] | None:
    """`GOMP_parallel(function, data, threads, flags)` of the library that torch is linked to."""
    prototype = ctypes.CFUNCTYPE(None, function, data, ctypes.c_uint, ctypes.c_uint)
    try:
        library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        return prototype(("GOMP_parallel", library))
    except (OSError, AttributeError):
        return None


def run(task: Task, count: int) -> None:
    """Run `task` on up to `count` threads at once, the calling thread being one of them.

    The task draws its work from a shared counter and returns when none is left, so it does not
    matter how many threads come, nor when.
    """
    if count == 1:
        task()
    elif _forked or (parallel := _parallel(type(_call), ctypes.py_object)) is None:
        _run_in_pool(task, count)
    else:
        _run_in_team(parallel, task, count)


def parallel_for(count: int, most: int, least: int, run_part: Callable[[int, int], None]) -> None:
    """Call `run_part(start, stop)` for all of `count` places, `least` to `most` at a time."""
    if count == 0:
        return
    available = torch.get_num_threads()
    size = min(most, max(least, -(-count // available)))
    starts = itertools.count(0, size)

    def task() -> None:
        # Drawing a number is one step under the interpreter's lock, so threads share it.
        while (start := next(starts)) < count:
            run_part(start, min(start + size, count))

    run(task, min(available, -(-count // size)))


def run_native(function: Callable[[int], None], data: int, count: int, held: object) -> None:
    """The same for a `Native` function and the address that it takes.

    What is `held` lives until the last thread is done, even if this one is interrupted.
    """
    if count == 1:
        function(data)
    elif _forked or (parallel := _parallel(Native, ctypes.c_void_p)) is None:
        _run_in_pool(partial(_call_native, function, data, held), count)
    else:
        parallel(function, data, count, 0)


def _call_native(function: Callable[[int], None], data: int, held: object) -> None:
    function(data)


def _run_in_team(parallel: Callable[..., None], task: Task, count: int) -> None:
    raised: list[BaseException] = []

    def guarded() -> None:
        # An exception cannot cross the C frames between here and the caller.
        try:
            task()
        except BaseException as error:
            raised.append(error)

    parallel(_call, guarded, count, 0)
    if raised:
        raise raised[0]


def _executor() -> ThreadPoolExecutor:
    global _pool
    if _pool is None:
        # Threads start when needed and block while idle. Two callers racing here leave one pool
        # unused, which costs nothing.
        _pool = ThreadPoolExecutor(max(64, os.cpu_count() or 1), thread_name_prefix="qkv")
    return _pool


def _run_in_pool(task: Task, count: int) -> None:
    helpers: list[Future[None]] = []
    with contextlib.suppress(RuntimeError):  # at interpreter shutdown: no new threads
        helpers.extend(_executor().submit(task) for _ in range(count - 1))
    try:
        task()
    finally:
        for helper in helpers:
            if not helper.cancel():
                helper.result()
