"""How much memory a computation may take before it must say no."""

from __future__ import annotations

import os
from functools import cache

import torch

#: Tensors made for one tile stay below this, so that they live in the processor's caches.
TILE_BYTES = 4 * 2**20

_PHYSICAL = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def chosen_budget() -> str | None:
    """QKV_MEMORY_BUDGET as it stands in the environment."""
    return os.environ.get("QKV_MEMORY_BUDGET")


def budget(device: torch.device) -> int:
    """Half of the memory of `device`, in bytes; QKV_MEMORY_BUDGET (in bytes) overrules it."""
    chosen = chosen_budget()
    if chosen is not None:
        if not chosen.isdigit():
            raise ValueError(f"QKV_MEMORY_BUDGET must be a number of bytes; got {chosen!r}")
        return int(chosen)
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory) // 2
    return _PHYSICAL // 2


def keep_freed_pages() -> None:
    """Have the C library keep the memory of one tile, or block of scores, for the next.

    glibc gives freed memory back to the system, and each page then has to be made anew, which takes
    longer than the work of a tile; unless a larger block was freed before, by its own rule.
    """
    if not torch.compiler.is_compiling():
        _free_a_large_block()


@cache
def _free_a_large_block() -> None:
    # Of its pages none is touched. 32 MB are the most that the rule takes note of.
    torch.empty(31 * 2**20, dtype=torch.uint8)


def readable(count: float) -> str:
    """Bytes as a person says them: 8.6 GB."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if count < 1000 or unit == "TB":
            break
        count /= 1000
    return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
