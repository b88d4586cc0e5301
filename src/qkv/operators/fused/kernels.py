"""The kernels as they are called: found on disk or compiled, loaded once, run on many threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable

import torch

from qkv.operators.fused import cache, machine, threads
from qkv.operators.fused.arguments import SPACE, STATUS, Operand, pack
from qkv.operators.fused.space import Space

Name = tuple[str, str, str]  # the kind of similarity, the way, and the type of numbers


class Kernel:
    """Machine code that answers or differentiates for one similarity and type."""

    def __init__(self, way: str, real: torch.dtype, code: bytes) -> None:
        self.way, self.real = way, real
        self.address = machine.link(code)

    def run(self, operands: Iterable[Operand], space: Space, count: int) -> None:
        """Work on `count` threads, each in its own space."""
        held = tuple(operands)
        words = pack(self.way, self.real, held, space)
        room = torch.empty(count * space.size, dtype=torch.uint8, device="cpu")
        words[SPACE] = room.data_ptr()
        threads.run_native(self.address, words.buffer_info()[0], count)
        if words[STATUS]:
            raise RuntimeError(f"a kernel stopped with status {words[STATUS]}")


_loaded: dict[Name, Kernel] = {}
_lock = threading.Lock()


def _after_fork() -> None:
    """In a forked child nobody holds the lock, even if a thread of the parent did."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def kernel(kind: str, way: str, real: torch.dtype) -> Kernel:
    """A kernel, "forward" or "backward"; compiled, for seconds, if it was never used before."""
    name = (kind, way, str(real).removeprefix("torch."))
    found = _loaded.get(name)
    if found is None:
        with _lock:
            found = _loaded.get(name) or Kernel(way, real, machine_code(name))
            _loaded[name] = found
    return found


def machine_code(name: Name) -> bytes:
    """The code of a kernel, from disk if it was ever compiled for this machine."""
    file = cache.file("-".join(name), *machine.toolchain())
    code = cache.read(file)
    if code is None:
        # Numba takes a third of a second to import, so only those who compile do.
        from qkv.operators.fused.compiler import compile_kernel

        code = compile_kernel(*name)
        cache.write(file, code)
    return code
