"""The processor that code is compiled for."""

from __future__ import annotations

import os
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import llvmlite
import llvmlite.binding as llvm

# What each level of x86-64 asks of a processor beyond the one before it, best first, as far as
# LLVM tells them apart.
LEVELS = {
    "x86-64-v4": ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
    "x86-64-v3": ("avx", "avx2", "bmi", "bmi2", "f16c", "fma", "lzcnt", "movbe", "xsave"),
}


class Target(NamedTuple):
    """A processor as LLVM names it."""

    triple: str
    cpu: str
    features: str

    def machine(self) -> Any:
        """LLVM's code generator for it, set as Numba sets its own."""
        llvm.initialize_native_target()
        llvm.initialize_native_asmprinter()
        architecture = llvm.Target.from_triple(self.triple)
        return architecture.create_target_machine(
            cpu=self.cpu,
            features=self.features,
            opt=3,
            # LLVM's loader wants static relocation on x86.
            reloc="static" if architecture.name.startswith("x86") else "default",
            codemodel="jitdefault",
            jit=True,
        )


@cache
def target() -> Target:
    """The processor of this machine, or the one that Numba's own settings name."""
    name = os.environ.get("NUMBA_CPU_NAME") or llvm.get_host_cpu_name()
    features = os.environ.get("NUMBA_CPU_FEATURES")
    if features is None:
        # A level says itself what it has; the host's features would make it another.
        levelled = name.lower() == "generic" or name.startswith("x86-64")
        features = "" if levelled else _host_features()
    return Target(llvm.get_process_triple(), name, features)


def _host_features() -> str:
    try:
        features: str = llvm.get_host_cpu_features().flatten()
    except RuntimeError:  # where LLVM cannot tell
        return ""
    return features


def levels() -> list[Target]:
    """The levels of x86-64 whose code runs on the target, the best first."""
    triple, name, features = target()
    has = {each[1:] for each in features.split(",") if each.startswith("+")}
    wanted: set[str] = set().union(*LEVELS.values())
    fitting = []
    for level, asked in LEVELS.items():
        if triple.startswith("x86_64") and (wanted <= has or name == level):
            fitting.append(Target(triple, level, ""))
        wanted -= set(asked)
    return fitting


@cache
def compiler_versions() -> tuple[str, str]:
    """The versions of Numba and LLVM's binding that compile here."""
    try:
        return version("numba"), llvmlite.__version__
    except PackageNotFoundError:
        return "none", llvmlite.__version__
