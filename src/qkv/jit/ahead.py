"""Compiling functions ahead of their first use, on all cores."""

from __future__ import annotations

import importlib
import multiprocessing
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait

from qkv.jit import cache
from qkv.jit.kernels import FUNCTIONS, Function, Kernel

Job = tuple[str, str]  # the path of a function, and a type


def jobs(modules: Sequence[str]) -> list[Job]:
    """All that these modules and what they import have to compile, what takes longest first."""
    _import(modules)
    functions = sorted(FUNCTIONS.values(), key=_size, reverse=True)
    return [(function.path, real) for function in functions for real in function.reals]


def _size(function: Function) -> tuple[bool, int]:
    return isinstance(function, Kernel), len(list(function.parts()))


def missing(modules: Sequence[str]) -> list[Job]:
    """What was not compiled for this machine yet."""
    return [(path, real) for path, real in jobs(modules) if FUNCTIONS[path].stored(real) is None]


def compile_all(modules: Sequence[str], wanted: Sequence[Job]) -> Iterator[list[Job]]:
    """Compile, a process for each core; gives the jobs that are done, at least once a second."""
    yield from _on_all_cores(modules, wanted, _compile)


def prebuild(modules: Sequence[str], wanted: Sequence[Job]) -> Iterator[list[Job]]:
    """The same into the package itself, for the level of x86-64 that the target is set to."""
    yield from _on_all_cores(modules, wanted, _prebuild)


def _on_all_cores(
    modules: Sequence[str], wanted: Sequence[Job], run: Callable[[Job], None]
) -> Iterator[list[Job]]:
    if not wanted:
        return
    workers = min(len(wanted), os.cpu_count() or 1)
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, context, _import, (tuple(modules),)) as pool:
        jobs = {pool.submit(run, job): job for job in wanted}
        pending = set(jobs)
        while pending:
            done, pending = wait(pending, timeout=1.0, return_when=FIRST_COMPLETED)
            for each in done:
                each.result()
            yield [jobs[each] for each in done]


def _import(modules: Sequence[str]) -> None:
    for module in modules:
        importlib.import_module(module)


def _compile(job: Job) -> None:
    path, real = job
    FUNCTIONS[path].machine_code(real)


def _prebuild(job: Job) -> None:
    from qkv.jit.target import target

    function, real, level = FUNCTIONS[job[0]], job[1], target().cpu
    directory = cache.PREBUILT / level
    directory.mkdir(parents=True, exist_ok=True)
    file = directory / function.prebuilt_name(real, level)
    cache.write(file, function.compile(real))
    file.chmod(0o644)  # whoever installs it is not who reads it
