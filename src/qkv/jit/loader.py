"""How machine code gets into this process.

LLVM's own linker does it, through llvmlite: neither Numba nor a system linker is needed.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm

from qkv.jit.target import target

ENTRY = "qkv_entry"  # the symbol of a function's C entry

_engines: list[Any] = []  # code lives as long as its engine


def link(code: bytes) -> int:
    """Load object code; the address of its entry, good for the life of the process."""
    machine = target().machine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    address: int = engine.get_function_address(ENTRY)
    return address
