"""The decorators of compiled code: what is compiled, and what its machine code depends on.

- `kernel`: called from Python, by way of :class:`~qkv.jit.kernels.Kernel`, on many threads;
- `callback`: called by kernels through its address;
- `device`: compiled into whatever calls it.

Neither imports Numba: only who compiles needs it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from types import CellType, FunctionType
from typing import Any

import numpy as np

# What LLVM may assume. Never `nnan` or `ninf`: NaN in an attended key must show in the answer.
RELAXED = frozenset({"reassoc", "contract", "arcp", "nsz"})
#: Sums in the order in which they are written.
IN_ORDER = frozenset({"contract"})


class Compiled:
    """A Python function that is compiled; `fastmath` is what LLVM may assume of its numbers."""

    def __init__(self, function: Callable[..., Any], fastmath: frozenset[str] = RELAXED) -> None:
        self.function, self.fastmath = function, fastmath
        self.name = function.__name__
        self.__doc__ = function.__doc__

    def free_names(self) -> dict[str, Any]:
        """What the names stand for that the function uses but does not define."""
        function: Any = self.function
        cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
        names = {name: cell.cell_contents for name, cell in cells}
        for name in _names(function.__code__):
            # Others are attributes, or Python's own.
            if name in function.__globals__:
                names.setdefault(name, function.__globals__[name])
        return names

    def rebound(self, names: dict[str, Any]) -> FunctionType:
        """A copy of the function in which these names stand for something else."""
        function: Any = self.function
        cells = (CellType(names[name]) for name in function.__code__.co_freevars)
        copy = FunctionType(
            function.__code__, {**function.__globals__, **names}, self.name, closure=tuple(cells)
        )
        copy.__qualname__, copy.__module__ = self.name, function.__module__
        return copy

    def digest(self) -> str:
        """A digest of all that is compiled with it: sources, and constants by their values."""
        digest = hashlib.sha256()
        for part in sorted(set(self.parts())):
            digest.update(part.encode())
        return digest.hexdigest()[:16]

    def parts(self) -> Iterator[str]:
        """The sources and the constants that it uses, itself or by others."""
        yield from _closure(self, set())


class Device(Compiled):
    """A function that is compiled into whatever calls it."""

    def __call__(self, *arguments: Any) -> Any:
        raise TypeError(f"{self.name} is for compiled code only")


def device(function: Callable[..., Any]) -> Device:
    return Device(function)


def device_in_order(function: Callable[..., Any]) -> Device:
    """A device function whose sums are taken in the order in which they are written."""
    return Device(function, IN_ORDER)


def _closure(compiled: Compiled, seen: set[int]) -> Iterator[str]:
    if id(compiled) in seen:
        return
    seen.add(id(compiled))
    yield f"{compiled.name}:{sorted(compiled.fastmath)}"
    code: Any = compiled.function.__code__
    yield _source(code.co_filename)
    for name, value in compiled.free_names().items():
        if isinstance(value, Compiled):
            yield f"{compiled.name}.{name}={value.name}"
            yield from _closure(value, seen)
        elif isinstance(value, np.ndarray):
            yield f"{compiled.name}.{name}={value.dtype}{value.tolist()}"
        elif isinstance(value, (bool, int, float, str, tuple)):
            yield f"{compiled.name}.{name}={value!r}"
        elif isinstance(value, type):
            # A NamedTuple: its fields are part of what is compiled.
            yield f"{compiled.name}.{name}={value.__qualname__}{getattr(value, '_fields', '')}"


def _names(code: Any) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if hasattr(constant, "co_names"):
            yield from _names(constant)


@cache
def _source(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()
