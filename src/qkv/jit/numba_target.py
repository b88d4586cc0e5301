"""Numba as a translator only: from Python to LLVM's code, which it neither optimises nor loads.

Left to itself, Numba optimises and loads each function anew together with all that it calls; for a
driver that takes ten times as long as doing it once for the whole. So this is a target of its own,
as Numba lets one register; what others compile with Numba in the same process goes its usual way.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numba
from numba.core.codegen import JITCodeLibrary, JITCPUCodegen
from numba.core.cpu import CPUContext
from numba.core.fastmathpass import rewrite_module
from numba.core.registry import CPUDispatcher, CPUTarget
from numba.core.target_extension import (
    CPU,
    dispatcher_registry,
    jit_registry,
    target_override,
    target_registry,
)

NAME = "qkv"


class _Library(JITCodeLibrary):
    def _optimize_functions(self, ll_module: Any) -> None:
        ll_module.data_layout = self._codegen._data_layout

    def _optimize_final_module(self) -> None:
        pass

    def _finalize_specific(self) -> None:
        pass


class _Codegen(JITCPUCodegen):
    _library_class = _Library

    def _add_module(self, module: Any) -> None:
        pass


class _Context(CPUContext):
    def init(self) -> None:
        super().init()
        self._internal_codegen = _Codegen(NAME)

    def load_additional_registries(self) -> None:
        """What kernels can say; the rest of Numba, which imports SciPy, takes as long to load."""
        from numba.core import optional  # noqa: F401
        from numba.cpython import (
            builtins,  # noqa: F401
            mathimpl,
            numbers,  # noqa: F401
            rangeobj,  # noqa: F401
            slicing,  # noqa: F401
            tupleobj,  # noqa: F401
        )
        from numba.np import (
            arrayobj,  # noqa: F401
            npyimpl,
        )

        self.install_registry(mathimpl.registry)
        self.install_registry(npyimpl.registry)

    def post_lowering(self, mod: Any, library: Any) -> None:
        """Without Numba's runtime, which kernels need not: they make no arrays."""
        if self.fastmath:
            rewrite_module(mod, self.fastmath)

    def get_executable(self, library: Any, fndesc: Any, env: Any) -> Any:
        library.finalize()  # links what the function calls
        # What Numba finds the function by; it must be built in, and no two may be equal.
        unique: list[Any] = []
        return unique.append


class _Target(CPUTarget):
    @property
    def target_context(self) -> Any:
        if "context" not in self.__dict__:
            self.__dict__["context"] = _Context(self.typing_context, NAME)
        return self.__dict__["context"]


class _Dispatcher(CPUDispatcher):
    targetdescr = _Target(NAME)


class _Translated(CPU):
    pass


def translating() -> Any:
    """Within it, whatever Numba is asked of is meant for this target."""
    return target_override(NAME)


def jit(fastmath: frozenset[str], signature: Any = None) -> Any:
    """A decorator that has Numba translate a function, at once if its signature is given.

    `error_model="numpy"`: a division must not branch to raise ZeroDivisionError. Nobody but other
    compiled code calls it, so it needs no wrapper for Python or C. And it makes no arrays, so it
    need not count references (`_nrt`): its caller holds them, and counting those of all arguments,
    atomically, in every call would cost a third of a narrow tile's time.
    """
    decorator: Any = numba.njit  # whose inner options have no types
    return decorator(
        signature,
        _target=NAME,
        fastmath=set(fastmath),
        error_model="numpy",
        _nrt=False,
        no_cpython_wrapper=True,
        no_cfunc_wrapper=True,
    )


target_registry[NAME] = _Translated
dispatcher_registry[_Translated] = _Dispatcher
jit_registry[_Translated] = partial(numba.jit, _target=NAME)
