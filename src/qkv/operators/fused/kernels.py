"""The kernels as they are called: found on disk or compiled, loaded once, run on many threads."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence

import torch

from qkv.operators.fused import cache, threads
from qkv.operators.fused.arguments import STATUS, Operand, expected, pack
from qkv.operators.fused.space import Space


class Kernel:
    """Machine code that answers or differentiates for one similarity and type."""

    def __init__(self, kind: str, way: str, real: torch.dtype) -> None:
        # LLVM is loaded here, so that those who use no kernel do not wait for it.
        from qkv.operators.fused.machine import link

        self.expected = expected(way, real)
        self.code = threads.Native(link(machine_code(kind, way, str(real).removeprefix("torch."))))

    def run(self, operands: Sequence[Operand], space: Space, count: int) -> None:
        """Work on `count` threads, each in its own space."""
        room = torch.empty(count * space.size, dtype=torch.uint8, device="cpu")
        words = pack(self.expected, operands, space, room.data_ptr())
        threads.run_native(self.code, words.buffer_info()[0], count, (operands, room, words))
        if words[STATUS]:
            raise RuntimeError(f"a kernel stopped with status {words[STATUS]}")


_loaded: dict[tuple[str, str, torch.dtype], Kernel] = {}
_lock = threading.Lock()


def _after_fork() -> None:
    """In a forked child nobody holds the lock, even if a thread of the parent did."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


def kernel(kind: str, way: str, real: torch.dtype) -> Kernel:
    """A kernel, "forward" or "backward"; compiled, for seconds, if it was never used before."""
    name = (kind, way, real)
    found = _loaded.get(name)
    if found is None:
        with _lock:
            found = _loaded.get(name) or Kernel(*name)
            _loaded[name] = found
    return found


def machine_code(kind: str, way: str, real: str) -> bytes:
    """The code of a kernel, from disk if it was ever compiled for this machine."""
    from qkv.operators.fused.machine import toolchain

    file = cache.file(f"{kind}-{way}-{real}", *toolchain())
    code = cache.read(file)
    if code is None:
        # Numba takes a third of a second to import, so only those who compile do.
        from qkv.operators.fused.compiler import compile_kernel

        code = compile_kernel(kind, way, real)
        cache.write(file, code)
    return code
