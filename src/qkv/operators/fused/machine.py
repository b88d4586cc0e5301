"""The machine that kernels are compiled for, and how their code gets into this process.

LLVM's own linker does it, through llvmlite: neither Numba nor a system linker is needed.
"""

from __future__ import annotations

import os
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm

ENTRY = "qkv_kernel"  # the symbol of a kernel's C function


@cache
def target() -> tuple[str, str, str]:
    """The triple, the CPU's name and its features; Numba's settings for these are kept to."""
    name = os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()
    features = os.environ.get("NUMBA_CPU_FEATURES")
    if features is None:
        features = "" if name.lower() == "generic" else _host_features()
    return llvm.get_process_triple(), name, features


def _host_features() -> str:
    try:
        features: str = llvm.get_host_cpu_features().flatten()
    except RuntimeError:  # where LLVM cannot tell
        return ""
    return features


def target_machine() -> Any:
    """LLVM's code generator for this machine, set as Numba sets its own."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    triple, cpu, features = target()
    found = llvm.Target.from_triple(triple)
    return found.create_target_machine(
        cpu=cpu,
        features=features,
        opt=3,
        # LLVM's loader wants static relocation on x86.
        reloc="static" if found.name.startswith("x86") else "default",
        codemodel="jitdefault",
        jit=True,
    )


def toolchain() -> tuple[str, ...]:
    """All that machine code depends on besides its source."""
    from importlib.metadata import version

    return (*target(), version("numba"), llvmlite.__version__)


_engines: list[Any] = []  # code lives as long as its engine


def link(code: bytes) -> int:
    """Load object code; the address of its entry, good for the life of the process."""
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _engines.append(engine)
    address: int = engine.get_function_address(ENTRY)
    return address
