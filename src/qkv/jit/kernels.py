"""Kernels as they are called: found on disk or compiled, loaded once, run on many threads."""

from __future__ import annotations

import hashlib
import os
import threading
import warnings
from array import array
from collections.abc import Callable, Iterable, Sequence
from functools import cache, cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from qkv.jit import cache as store
from qkv.jit import threads
from qkv.jit.arguments import HEADER, ROOM, STATUS, Operand, address_of, block, pack, type_of
from qkv.jit.function import IN_ORDER, RELAXED, Compiled
from qkv.jit.scratch import Scratch, give_back, lay_out, take
from qkv.jit.signature import Leaf, Signature, signature
from qkv.optional_dependencies import require

REALS = ("float32", "float64")


class UnavailableError(OSError):
    """Machine code could be neither found nor made; the message says why."""


#: All functions of the modules that were imported, by their paths.
FUNCTIONS: dict[str, Function] = {}


class Function(Compiled):
    """A function with machine code of its own, for each type that it is compiled for."""

    #: Parameters that the entry gives, before those of the signature.
    given = 0

    def __init__(self, function: Callable[..., Any], fastmath: frozenset[str] = RELAXED) -> None:
        super().__init__(function, fastmath)
        self._addresses: dict[str, int] = {}
        self._failures: dict[str, str] = {}
        FUNCTIONS[self.path] = self

    @cached_property
    def signature(self) -> Signature:
        return signature(self.function, skip=self.given)

    @property
    def reals(self) -> tuple[str, ...]:
        """The types that it is compiled for."""
        return REALS if self.signature.is_generic else ("float64",)

    @property
    def path(self) -> str:
        """Its module and name, without the package's: what its files are called."""
        return f"{self.function.__module__}.{self.name}".removeprefix("qkv.")

    def digest(self) -> str:
        """That of all that is compiled with it, and of what it takes."""
        text = f"{super().digest()} {self.signature}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def failure(self, real: str) -> str | None:
        """Why there is no machine code, if it was tried in vain."""
        return self._failures.get(real)

    def address(self, real: str) -> int:
        """Where its machine code is; compiled, for a second or more, if it never was before."""
        address = self._addresses.get(real)
        if address is None:
            with _lock:
                address = self._addresses.get(real)
                if address is None:
                    address = self._addresses[real] = self._load(real)
        return address

    def _load(self, real: str) -> int:
        if real in self._failures:
            raise UnavailableError(self._failures[real])
        try:
            # LLVM is loaded here, so that those who use no kernel do not wait for it.
            from qkv.jit.loader import link

            return link(self.machine_code(real))
        except Exception as error:  # whatever a compiler may come up with
            reason = f"{self.path} cannot be compiled here: {type(error).__name__}: {error}"
            self._failures[real] = " ".join(reason.split())
            raise UnavailableError(self._failures[real]) from error

    def machine_code(self, real: str) -> bytes:
        """Its object code: of an earlier process, of the package, or compiled now."""
        code = self.stored(real)
        if code is None:
            code = self.compile(real)
            store.write(self._file(real), code)
        return code

    def compile(self, real: str) -> bytes:
        """Its object code for the processor that is the target."""
        # Numba takes a third of a second to import, so only those who compile do.
        require("numba", "compile")
        from qkv.jit.compiler import object_code

        return object_code(self, real)

    def stored(self, real: str) -> bytes | None:
        """Its object code, if an earlier process compiled it or the package brought it."""
        from qkv.jit.target import levels

        code = store.read(self._file(real))
        for level in levels() if code is None else ():
            code = code or store.read_prebuilt(level.cpu, self.prebuilt_name(real, level.cpu))
        return code

    def prebuilt_name(self, real: str, level: str) -> str:
        """The name of the file with its code for a level of x86-64, in the package."""
        from qkv.jit.target import target

        depends = (self.digest(), _room_digest(), target().triple)
        return store.file_name(f"{self.path}-{real}", level, *depends)

    def _file(self, real: str) -> Path:
        """Where its code for this machine is kept."""
        from qkv.jit.target import compiler_versions, target

        processor = target()
        depends = (self.digest(), _room_digest(), *processor, *compiler_versions())
        return store.directory() / store.file_name(f"{self.path}-{real}", processor.cpu, *depends)


class Callback(Function):
    """A function that kernels call through its address."""


class Kernel(Function):
    """A function that many threads run: each draws some of the work until none is left.

    The Python function's first parameters, `start` and `stop`, say which part of the work.
    """

    given = 2

    def __call__(
        self,
        *operands: Any,
        count: int,
        grain: int = 1,
        scratch: Any = None,
        most_threads: int | None = None,
    ) -> None:
        """Do `count` pieces of work, `grain` at a time, on as many threads as torch has.

        Operands are arrays, numbers, or NamedTuples of them, as the Python function takes them;
        `scratch` is a NamedTuple of the shapes of each thread's buffers.
        """
        flat = [*_flat(operands)]
        self.bind(*flat, count=count, grain=grain, scratch=scratch, most_threads=most_threads)(
            [
                each
                for leaf, each in zip(self._leaves, flat, strict=True)
                if leaf.kind.axes and each is not None
            ]
        )

    def bind(
        self,
        *operands: Any,
        count: int,
        grain: int = 1,
        scratch: Any = None,
        most_threads: int | None = None,
    ) -> Bound:
        """The same call, to be made later, and more than once with other arrays."""
        if (scratch is None) != (self.signature.scratch is None):
            wanted = "needs" if scratch is None else "takes no"
            raise TypeError(f"{self.path} {wanted} scratch")
        flat = [*_flat(operands)]
        real = type_of(self._leaves, flat) if self._generic else "float64"
        layout = None if scratch is None else self._laid_out(real, scratch)
        words, places = pack(self._leaves, flat, real)
        most = most_threads or torch.get_num_threads()
        team = min(most, -(-count // grain)) if count > 0 else 0
        code = self._entries.get(real)
        if code is None:
            code = self._entries[real] = threads.Native(self.address(real))
        return Bound(
            self.path,
            code,
            block(words, layout, count, grain),
            [HEADER + place for place in places],
            team,
            0 if layout is None else layout.size,
        )

    @cached_property
    def _leaves(self) -> tuple[Leaf, ...]:
        return self.signature.leaves

    @cached_property
    def _generic(self) -> bool:
        return self.signature.is_generic

    @cached_property
    def _entries(self) -> dict[str, Callable[[int], None]]:
        return {}

    @cached_property
    def _laid_out(self) -> Callable[[str, Any], Scratch]:
        assert self.signature.scratch is not None, "checked by the call"
        return lru_cache(maxsize=256)(partial(lay_out, self.signature.scratch))


class Bound:
    """A call whose types and shapes are settled: from one to the next only addresses change."""

    def __init__(
        self,
        path: str,
        code: Callable[[int], None],
        words: array[int],
        places: list[int],
        team: int,
        scratch_size: int,
    ) -> None:
        self._path, self._code, self._words = path, code, words
        self._places, self._team, self._scratch_size = places, team, scratch_size

    def __call__(self, arrays: Sequence[Any]) -> None:
        """Run on these arrays, those of the operands that are arrays, in their order.

        They have the types and shapes of those that it was made for, and are contiguous.
        """
        if self._team < 1:  # there is nothing to do
            return
        words = self._words[:]
        for place, each in zip(self._places, arrays, strict=True):
            words[place] = each.data_ptr() if isinstance(each, Tensor) else address_of(each)
        memory = None
        if self._scratch_size:
            memory = take(self._team * self._scratch_size)
            words[ROOM] = memory.data_ptr()
        # If this is interrupted, other threads may go on: then the memory is not given back.
        threads.run_native(self._code, words.buffer_info()[0], self._team, (arrays, memory, words))
        if memory is not None:
            give_back(memory)
        if words[STATUS]:
            raise RuntimeError(f"{self._path} stopped with status {words[STATUS]}")


def _flat(operands: Iterable[Operand]) -> Iterable[Operand]:
    for operand in operands:
        if isinstance(operand, tuple):
            yield from operand
        else:
            yield operand


def kernel(function: Callable[..., Any]) -> Kernel:
    return Kernel(function)


def kernel_in_order(function: Callable[..., Any]) -> Kernel:
    """A kernel whose sums are taken in the order in which they are written."""
    return Kernel(function, IN_ORDER)


def callback(function: Callable[..., Any]) -> Callback:
    return Callback(function)


_lock = threading.Lock()


def _after_fork() -> None:
    """In a forked child nobody holds the lock, even if a thread of the parent did."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


@cache
def _room_digest() -> str:
    """A digest of this package: how code is compiled and called is a part of it."""
    digest = hashlib.sha256()
    for path in sorted(store.PACKAGE.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


_warned: list[str] = []


def warn_once(reason: str) -> None:
    """Say once in a process that slower operators answer; `explain` tells of each."""
    if not _warned:
        _warned.append(reason)
        warnings.warn(f"{reason}; a slower operator is used instead", RuntimeWarning, stacklevel=2)
