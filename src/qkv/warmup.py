"""All compiled code of the project, compiled ahead of time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import NamedTuple

#: The packages with compiled code, and what each needs to be imported, if that may be missing.
PACKAGES = {
    "qkv.similarity": None,
    "qkv.operators.fused": None,
    "qkv.operators.lookup": None,
    "qkv.operators.sorted": None,
    "qkv.translate": None,
    "qkv.table": "pyarrow",
    "qkv.regression": "sklearn",
}


def packages() -> list[str]:
    """Those whose dependencies are installed."""
    return [name for name, needs in PACKAGES.items() if needs is None or find_spec(needs)]


class CompileProgress(NamedTuple):
    """How far compilation is; yielded at least once a second."""

    done: int
    total: int
    last: str  # the function that was done last


def warmup() -> Iterator[CompileProgress]:
    """Compile what is not compiled for this machine yet."""
    from qkv.jit.ahead import compile_all, missing

    uncompiled = missing(packages())
    yield from _progress(compile_all(packages(), uncompiled), len(uncompiled))


def prebuild() -> Iterator[CompileProgress]:
    """Compile all into the package itself, for the level of x86-64 that NUMBA_CPU_NAME names."""
    from qkv.jit.ahead import jobs
    from qkv.jit.ahead import prebuild as compile_into_package

    everything = jobs(packages())
    yield from _progress(compile_into_package(packages(), everything), len(everything))


def _progress(batches: Iterable[list[tuple[str, str]]], total: int) -> Iterator[CompileProgress]:
    done, last = 0, ""
    if total:
        yield CompileProgress(done, total, last)  # others are started, which takes a while
    for batch in batches:
        done += len(batch)
        last = " ".join(batch[-1]) if batch else last
        yield CompileProgress(done, total, last)
