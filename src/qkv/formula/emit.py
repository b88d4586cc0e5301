"""Tile functions of a program as modules of LLVM.

They exist for keys that are columns (the lanes of vectors run along keys) and for keys that are
rows (they run along features); `operators/fused/inputs.py` says what each is given.
"""

from __future__ import annotations

from llvmlite import ir

from qkv.formula.gradient import gradient
from qkv.formula.program import Program
from qkv.formula.scores import column_scores, row_scores
from qkv.formula.tile import Tile
from qkv.formula.vector import Writer

ENTRY = "qkv_entry"


def module_of(program: Program, form: str, real: str, triple: str) -> ir.Module:
    """The module of one tile function; its entry takes the words of `jit/arguments.py`."""
    module = ir.Module()
    module.triple = triple
    kind = ir.FunctionType(ir.VoidType(), [ir.IntType(8).as_pointer()])
    function = ir.Function(module, kind, ENTRY)
    # For processors with AVX-512 LLVM prefers vectors of half the width.
    set.add(function.attributes, '"prefer-vector-width"="512"')
    tile = Tile(program, Writer(function, real), function.args[0], "gradient" in form)
    if form in ("row_scores", "kept_row_scores"):
        row_scores(tile, keep=form == "kept_row_scores")
    elif form == "row_gradient":
        gradient(tile, rows=True)
    elif form == "gradient":
        gradient(tile, rows=False)
    else:
        column_scores(tile, keep=form == "kept_scores")
    tile.writer.builder.ret_void()
    return module
