"""From a Python function to the machine code of a C function, by Numba and LLVM.

Numba only translates (`numba_target.py`); everything is then linked and optimised once. The code
calls nothing but libm, so that `loader.py` can load it without Numba.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from typing import Any

import llvmlite.binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic
from numba.np.arrayobj import make_array, populate_array

from qkv.jit import lowering
from qkv.jit.arguments import COUNT, GRAIN, HEADER, NEXT, ROOM, STATUS, STRIDE, THREAD
from qkv.jit.builtins import Builtin
from qkv.jit.function import Compiled
from qkv.jit.kernels import Function, Kernel
from qkv.jit.loader import ENTRY
from qkv.jit.lowering import POINTER, WORD, fetch_add
from qkv.jit.numba_target import jit, translating
from qkv.jit.signature import Group, Kind
from qkv.jit.target import target

LIBM = {"sqrt", "sqrtf"}  # of numbers below 0; what has an intrinsic of LLVM goes without saying


def object_code(function: Function, real: str) -> bytes:
    """The object code of a function, whose entry takes the words of `arguments.py`."""
    with _no_garbage_collection(), translating():
        name, module = _translated(function, getattr(types, real))
    entry = _entry(name, module.triple, reports=isinstance(function, Kernel))
    module.link_in(llvm.parse_assembly(str(entry)))
    machine = target().machine()
    _optimise(module, machine)
    outside = {each.name for each in module.functions if each.is_declaration} - LIBM
    if strange := sorted(each for each in outside if not each.startswith("llvm.")):
        # LLVM ends the whole process when it loads code that calls what is not there.
        raise RuntimeError(f"a kernel must not call {', '.join(strange)}")
    code: bytes = machine.emit_object(module)
    return code


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Numba makes millions of objects that stay; looking through them takes a tenth of its time."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def _translated(function: Function, real: types.Type) -> tuple[str, Any]:
    """LLVM's code of the entry with all that it calls, and the entry's name in it."""
    inner, unpack = _jitted(function), _unpacking(function, real)
    if isinstance(function, Kernel):

        def entry(words: Any) -> None:
            arguments = unpack(words)
            while True:
                start: Any = fetch_add(words, NEXT, words[GRAIN])
                if start >= words[COUNT]:
                    return
                inner(start, min(start + words[GRAIN], words[COUNT]), *arguments)
    else:

        def entry(words: Any) -> None:
            inner(*unpack(words))

    compiled = jit(function.fastmath, types.void(types.CPointer(types.int64)))(entry)
    [signature] = compiled.signatures
    name = compiled.overloads[signature].fndesc.llvm_func_name
    return name, llvm.parse_assembly(compiled.inspect_llvm(signature))


def _optimise(module: Any, machine: Any) -> None:
    tuning = llvm.create_pipeline_tuning_options(speed_level=3)
    tuning.loop_vectorization = True
    for each in module.functions:
        if not each.is_declaration and each.name != ENTRY:
            each.linkage = "internal"  # so that what was inlined everywhere goes
    builder = llvm.create_pass_builder(machine, tuning)
    passes = builder.getModulePassManager()
    passes.run(module, builder)


_dispatchers: dict[Compiled, Any] = {}


def _jitted(compiled: Compiled) -> Any:
    """Numba's own object for a function, in which all names it uses are such objects."""
    dispatcher = _dispatchers.get(compiled)
    if dispatcher is None:
        names = compiled.free_names()
        for name, value in names.items():
            if isinstance(value, Builtin):
                names[name] = getattr(lowering, value.name)
            elif isinstance(value, Compiled):
                names[name] = _jitted(value)
        dispatcher = jit(compiled.fastmath)(compiled.rebound(names))
        _dispatchers[compiled] = dispatcher
    return dispatcher


def _unpacking(function: Function, real: types.Type) -> Any:
    """A jitted function from words to a function's arguments."""
    scalars = {"real": real, "bool": types.boolean}

    def type_of(kind: Kind) -> types.Type:
        scalar = scalars.get(kind.of) or getattr(types, kind.of)
        return types.Array(scalar, kind.axes, "C") if kind.axes else scalar

    def group_of(group: Group) -> types.Type:
        return types.NamedTuple([type_of(leaf.kind) for leaf in group.leaves], group.cls)

    operands, scratch = function.signature
    kinds = [group_of(x) if isinstance(x, Group) else type_of(x.kind) for x in operands]
    buffers = group_of(scratch) if scratch else None
    header = HEADER if isinstance(function, Kernel) else 0

    @intrinsic
    def unpack(typing_context: Any, words: Any) -> Any:
        result = types.Tuple([*kinds, *([buffers] if buffers else [])])

        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            reader = _Reader(context, builder, arguments[0], header)
            values = [reader.operand(each) for each in kinds]
            if buffers:
                values.append(reader.buffers(buffers))
            return context.make_tuple(builder, result, values)

        return result(words), generate

    return unpack


class _Reader:
    """Writes the instructions that read the words of a call, one after the other."""

    def __init__(self, context: Any, builder: Any, words: Any, first: int) -> None:
        self.context, self.builder, self.words = context, builder, words
        self.next = first

    def place(self, at: int) -> Any:
        return self.builder.gep(self.words, [ir.Constant(WORD, at)])

    def word(self) -> Any:
        self.next += 1
        return self.builder.load(self.place(self.next - 1))

    def operand(self, of: Any) -> Any:
        if isinstance(of, types.NamedTuple):
            fields = [self.operand(each) for each in of.types]
            return self.context.make_tuple(self.builder, of, fields)
        if isinstance(of, types.Array):
            return self._array(self.word(), of)
        word = self.word()
        if not isinstance(of, types.Float):
            return self.context.cast(self.builder, word, types.int64, of)
        double = self.builder.bitcast(word, ir.DoubleType())
        return double if of == types.float64 else self.builder.fptrunc(double, ir.FloatType())

    def buffers(self, of: Any) -> Any:
        """The buffers of this thread; threads are numbered as they come."""
        one = ir.Constant(WORD, 1)
        thread = self.builder.atomic_rmw("add", self.place(THREAD), one, "seq_cst")
        offset = self.builder.mul(thread, self.builder.load(self.place(STRIDE)))
        first = self.builder.add(self.builder.load(self.place(ROOM)), offset)
        fields = [self._array(self.builder.add(first, self.word()), each) for each in of.types]
        return self.context.make_tuple(self.builder, of, fields)

    def _array(self, address: Any, of: Any) -> Any:
        """A contiguous array that nobody counts references to."""
        pointer = self.context.get_data_type(of.dtype).as_pointer()
        shape = [self.word() for _ in range(of.ndim)]
        size = self.context.get_abi_sizeof(self.context.get_data_type(of.dtype))
        strides = [ir.Constant(WORD, size)]
        for length in reversed(shape[1:]):
            strides.insert(0, self.builder.mul(strides[0], length))
        array = make_array(of)(self.context, self.builder)
        data = self.builder.inttoptr(address, pointer)
        populate_array(array, data, shape, strides, size, meminfo=None)
        return array._getvalue()


def _entry(name: str, triple: str, reports: bool) -> ir.Module:
    """The C function around what Numba made, whose own calling convention has two arguments more.

    Both are for results and exceptions, of which compiled code has none; should a kernel stop with
    an exception all the same, it reports its status in the words.
    """
    module = ir.Module()
    module.triple = triple
    inner_type = ir.FunctionType(ir.IntType(32), [POINTER] * 3)
    inner = ir.Function(module, inner_type, name)
    entry = ir.Function(module, ir.FunctionType(ir.VoidType(), [POINTER]), ENTRY)
    builder = ir.IRBuilder(entry.append_basic_block())
    nothing = [builder.bitcast(builder.alloca(POINTER), POINTER) for _ in range(2)]
    status = builder.call(inner, [*nothing, entry.args[0]])
    failed = builder.icmp_signed("!=", status, ir.Constant(status.type, 0))
    with builder.if_then(builder.and_(failed, ir.Constant(ir.IntType(1), reports))):
        words = builder.bitcast(entry.args[0], WORD.as_pointer())
        place = builder.gep(words, [ir.Constant(WORD, STATUS)])
        builder.store(builder.sext(status, WORD), place)
    builder.ret_void()
    return module
