"""Programs as tile functions with addresses: found on disk, or compiled by LLVM alone."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from qkv.formula.program import Program
from qkv.jit import Callback
from qkv.jit.kernels import FUNCTIONS
from qkv.jit.signature import Signature


class TileFunction(Callback):
    """One form of a program, see `emit.py`; unlike other callbacks it needs no Numba."""

    def __init__(self, program: Program, form: str) -> None:
        self.program, self.form = program, form
        of_scores = form.endswith("scores")
        self.name = f"{program.score_digest if of_scores else program.digest}.{form}"
        self._addresses: dict[str, int] = {}
        self._failures: dict[str, str] = {}

    signature = Signature((), None)
    reals = ("float32", "float64")

    @property
    def path(self) -> str:
        return f"formula.{self.name}"

    def digest(self) -> str:
        """That of the program, and of how it is turned into instructions."""
        return hashlib.sha256(f"{self.name} {_own_digest()}".encode()).hexdigest()[:16]

    def parts(self) -> Any:
        yield self.name

    def compile(self, real: str) -> bytes:
        return object_code(self.program, self.form, real)


@lru_cache(maxsize=4096)
def tile_function(program: Program, form: str) -> TileFunction:
    """One form of a program, one object each, since each loads its code once."""
    return TileFunction(program, form)


class BuiltIn(TileFunction):
    """One form of a formula that the package brings; its program is made where it is needed."""

    def __init__(self, program: Callable[[], Program], kind: str, form: str) -> None:
        self._program, self.name, self.form = program, f"{kind}.{form}", form
        self._addresses, self._failures = {}, {}
        FUNCTIONS[self.path] = self

    def digest(self) -> str:
        key = f"{self._program().digest} {_own_digest()}"
        return hashlib.sha256(key.encode()).hexdigest()[:16]

    def compile(self, real: str) -> bytes:
        return object_code(self._program(), self.form, real)


@cache
def _own_digest() -> str:
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.glob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def object_code(program: Program, form: str, real: str) -> bytes:
    """The machine code of one form of a program, for this processor."""
    import llvmlite.binding as llvm

    from qkv.formula.emit import module_of
    from qkv.jit.target import target

    processor = target()
    machine = processor.machine()
    module = llvm.parse_assembly(str(module_of(program, form, real, processor.triple)))
    module.verify()
    tuning = llvm.create_pipeline_tuning_options(speed_level=2)
    tuning.loop_vectorization = tuning.slp_vectorization = False  # they are vectors already
    builder = llvm.create_pass_builder(machine, tuning)
    builder.getModulePassManager().run(module, builder)
    outside = {each.name for each in module.functions if each.is_declaration}
    if strange := sorted(name for name in outside if not name.startswith("llvm.")):
        raise RuntimeError(f"a tile function must not call {', '.join(strange)}")
    code: bytes = machine.emit_object(module)
    return code
