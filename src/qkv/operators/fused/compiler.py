"""From a driver in Python to the machine code of a C function, by Numba and LLVM.

The code calls nothing but libc and libm, so that `machine.py` can load it without Numba.
"""

from __future__ import annotations

from typing import Any

import llvmlite.binding as llvm
import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from qkv.operators.fused.arguments import HEADER, OPERANDS, ROOM, STATUS, STRIDE, THREAD, TICKET
from qkv.operators.fused.arithmetic import INNER_OPTIONS
from qkv.operators.fused.machine import ENTRY, target_machine
from qkv.operators.fused.similarity import build
from qkv.operators.fused.space import BUFFERS

LIBM = {"sqrt", "sqrtf"}  # of numbers below 0; what has an intrinsic of LLVM goes without saying
_WORD, _POINTER = ir.IntType(64), ir.IntType(8).as_pointer()


def compile_kernel(kind: str, way: str, real: str) -> bytes:
    """The object code of one kernel, a C function of the words of `arguments.py`."""
    driver, unpack = build(kind, way), _unpacking(way, getattr(types, real))

    def kernel(words: Any) -> None:
        driver(*unpack(words))

    compiled = numba.njit(types.void(types.CPointer(types.int64)), **INNER_OPTIONS)(kernel)
    [signature] = compiled.signatures
    module = llvm.parse_assembly(compiled.inspect_llvm(signature))
    name = compiled.overloads[signature].fndesc.llvm_func_name  # type: ignore[attr-defined]
    outside = {each.name for each in module.functions if each.is_declaration} - LIBM
    if strange := [each for each in outside if not each.startswith("llvm.")]:
        # LLVM ends the whole process when it loads code that calls what is not there.
        raise RuntimeError(f"a kernel must not call {', '.join(strange)}")
    module.link_in(llvm.parse_assembly(str(_entry(name, module.triple))))
    code: bytes = target_machine().emit_object(module)
    return code


def _unpacking(way: str, real: types.Type) -> Any:
    """A jitted function from words to a driver's arguments: counter, operands, buffers."""
    own = {"real": real, "bool": types.boolean}

    def array_type(of: str, axes: int) -> types.Type:
        return types.Array(own.get(of) or getattr(types, of), axes, "C")

    counter = array_type("int64", 1)
    operands = [
        array_type(of, axes) if axes else own.get(of) or getattr(types, of)
        for of, axes in OPERANDS[way].values()
    ]
    buffers = [array_type(of, axes) for of, axes in BUFFERS[way]]

    @intrinsic
    def unpack(typing_context: Any, words: Any) -> Any:
        result = types.Tuple([counter, *operands, types.Tuple(buffers)])

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            reader = _Reader(context, builder, arguments[0])
            first = reader.array_at(reader.place(TICKET), counter, [ir.Constant(_WORD, 1)])
            values = [first, *(reader.operand(each) for each in operands)]
            own_space = reader.own_space()
            room = [reader.buffer(own_space, each) for each in buffers]
            values.append(context.make_tuple(builder, result[-1], room))
            return context.make_tuple(builder, result, values)

        return result(words), generate

    return unpack


class _Reader:
    """Writes the instructions that read the words of a call, one after the other."""

    def __init__(self, context: Any, builder: Any, words: Any) -> None:
        self.context, self.builder, self.words = context, builder, words
        self.next = HEADER

    def place(self, at: int) -> Any:
        return self.builder.gep(self.words, [ir.Constant(_WORD, at)])

    def word(self) -> Any:
        self.next += 1
        return self.builder.load(self.place(self.next - 1))

    def own_space(self) -> Any:
        """The address of this thread's space; threads are numbered as they come."""
        one = ir.Constant(_WORD, 1)
        thread = self.builder.atomic_rmw("add", self.place(THREAD), one, "seq_cst")
        offset = self.builder.mul(thread, self.builder.load(self.place(STRIDE)))
        return self.builder.add(self.builder.load(self.place(ROOM)), offset)

    def operand(self, of: Any) -> Any:
        if isinstance(of, types.Array):
            return self._array(self.word(), of)
        word = self.word()
        if not isinstance(of, types.Float):
            narrow = self.context.get_value_type(of)
            return word if narrow == _WORD else self.builder.trunc(word, narrow)
        double = self.builder.bitcast(word, ir.DoubleType())
        return double if of == types.float64 else self.builder.fptrunc(double, ir.FloatType())

    def buffer(self, space: Any, of: Any) -> Any:
        return self._array(self.builder.add(space, self.word()), of)

    def _array(self, address: Any, of: Any) -> Any:
        pointer = self.context.get_data_type(of.dtype).as_pointer()
        shape = [self.word() for _ in range(of.ndim)]
        return self.array_at(self.builder.inttoptr(address, pointer), of, shape)

    def array_at(self, data: Any, of: Any, shape: list[Any]) -> Any:
        """A contiguous array that nobody counts references to."""
        size = self.context.get_abi_sizeof(self.context.get_data_type(of.dtype))
        strides = [ir.Constant(_WORD, size)]
        for length in reversed(shape[1:]):
            strides.insert(0, self.builder.mul(strides[0], length))
        array = make_array(of)(self.context, self.builder)
        populate_array(array, data, shape, strides, size, meminfo=None)
        return array._getvalue()


def _entry(name: str, triple: str) -> ir.Module:
    """The C function around what Numba made, whose own calling convention has two arguments more.

    Both are for results and exceptions, of which kernels have none; should one stop with an
    exception all the same, its status is left in the words.
    """
    module = ir.Module()
    module.triple = triple
    inner_type = ir.FunctionType(ir.IntType(32), [_POINTER] * 3)
    inner = ir.Function(module, inner_type, name)
    entry = ir.Function(module, ir.FunctionType(ir.VoidType(), [_POINTER]), ENTRY)
    builder = ir.IRBuilder(entry.append_basic_block())
    nothing = [builder.bitcast(builder.alloca(_POINTER), _POINTER) for _ in range(2)]
    status = builder.call(inner, [*nothing, entry.args[0]])
    with builder.if_then(builder.icmp_signed("!=", status, ir.Constant(status.type, 0))):
        words = builder.bitcast(entry.args[0], _WORD.as_pointer())
        place = builder.gep(words, [ir.Constant(_WORD, STATUS)])
        builder.store(builder.sext(status, _WORD), place)
    builder.ret_void()
    return module
