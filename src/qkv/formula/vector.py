"""Arithmetic as LLVM's instructions: numbers and vectors of them, with Python's operators.

A function on :class:`Value` writes the same instructions for one number and for a vector, so what
is written once serves both. Loops are laid out here too. Nothing here knows of attention.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from llvmlite import ir

# As in `jit`: never `nnan` or `ninf`, so that NaN shows.
RELAXED = ("reassoc", "contract", "arcp", "nsz")
EXACT = ("contract",)

WORD, BIT = ir.IntType(64), ir.IntType(1)


class Value:
    """A number or a vector of numbers: of the type in use, truth values, or integers."""

    __slots__ = ("code", "writer")

    def __init__(self, writer: Writer, code: Any) -> None:
        self.writer, self.code = writer, code

    @property
    def lanes(self) -> int:
        of = self.code.type
        return int(of.count) if isinstance(of, ir.VectorType) else 1

    def __add__(self, other: Operand) -> Value:
        return self.writer.binary("fadd", self, other)

    def __sub__(self, other: Operand) -> Value:
        return self.writer.binary("fsub", self, other)

    def __mul__(self, other: Operand) -> Value:
        return self.writer.binary("fmul", self, other)

    def __truediv__(self, other: Operand) -> Value:
        return self.writer.binary("fdiv", self, other)

    def __radd__(self, other: float) -> Value:
        return self + other

    def __rmul__(self, other: float) -> Value:
        return self * other

    def __rsub__(self, other: float) -> Value:
        return self.writer.number(other) - self

    def __rtruediv__(self, other: float) -> Value:
        return self.writer.number(other) / self

    def __neg__(self) -> Value:
        return Value(self.writer, self.writer.builder.fneg(self.code, flags=self.writer.flags))

    def __lt__(self, other: Operand) -> Value:
        return self.writer.compare("<", self, other)

    def __le__(self, other: Operand) -> Value:
        return self.writer.compare("<=", self, other)

    def __gt__(self, other: Operand) -> Value:
        return self.writer.compare(">", self, other)

    def __ge__(self, other: Operand) -> Value:
        return self.writer.compare(">=", self, other)

    def equals(self, other: Operand) -> Value:
        return self.writer.compare("==", self, other)

    def differs(self, other: Operand) -> Value:
        """True where they are not equal, NaN included."""
        return self.writer.compare("!=", self, other)

    def __and__(self, other: Value) -> Value:
        return self.writer.logical("and_", self, other)

    def __or__(self, other: Value) -> Value:
        return self.writer.logical("or_", self, other)

    def __invert__(self) -> Value:
        return Value(self.writer, self.writer.builder.not_(self.code))


Operand = Value | float


class Writer:
    """Writes instructions into one function, in one floating type."""

    def __init__(self, function: Any, real: str) -> None:
        self.builder = ir.IRBuilder(function.append_basic_block())
        self.module = function.module
        self.real = ir.FloatType() if real == "float32" else ir.DoubleType()
        self.is_narrow = real == "float32"
        #: As many as fill the widest registers there are; narrower ones take several steps.
        self.lanes = 16 if self.is_narrow else 8
        self.flags: tuple[str, ...] = RELAXED

    @contextmanager
    def exactly(self) -> Iterator[None]:
        """Within it, sums are taken as they are written."""
        before = self.flags
        self.flags = EXACT if before else ()
        yield
        self.flags = before

    @contextmanager
    def repeatably(self) -> Iterator[None]:
        """Within it, equal operands give equal bits, wherever the instructions stand."""
        before, self.flags = self.flags, ()
        yield
        self.flags = before

    @contextmanager
    def in_float64(self) -> Iterator[None]:
        before = self.real, self.is_narrow
        self.real, self.is_narrow = ir.DoubleType(), False
        yield
        self.real, self.is_narrow = before

    # Values

    def number(self, x: float, lanes: int = 1) -> Value:
        return self.splat(Value(self, ir.Constant(self.real, x)), lanes)

    def splat(self, value: Value, lanes: int) -> Value:
        """The same number in every lane."""
        if value.lanes == lanes:
            return value
        of = ir.VectorType(value.code.type, lanes)
        if isinstance(value.code, ir.Constant):
            return Value(self, ir.Constant(of, [value.code] * lanes))
        zero = ir.Constant(ir.IntType(32), 0)
        first = self.builder.insert_element(ir.Constant(of, ir.Undefined), value.code, zero)
        order = ir.Constant(ir.VectorType(ir.IntType(32), lanes), [zero] * lanes)
        return Value(self, self.builder.shuffle_vector(first, ir.Constant(of, ir.Undefined), order))

    def alike(self, *operands: Operand) -> list[Value]:
        """The operands with the lanes of the widest."""
        values = [x if isinstance(x, Value) else self.number(x) for x in operands]
        lanes = max(value.lanes for value in values)
        return [self.splat(value, lanes) for value in values]

    def binary(self, instruction: str, a: Operand, b: Operand) -> Value:
        a, b = self.alike(a, b)
        return Value(self, getattr(self.builder, instruction)(a.code, b.code, flags=self.flags))

    def compare(self, sign: str, a: Operand, b: Operand) -> Value:
        a, b = self.alike(a, b)
        compare = self.builder.fcmp_unordered if sign == "!=" else self.builder.fcmp_ordered
        return Value(self, compare(sign, a.code, b.code))

    def logical(self, instruction: str, a: Value, b: Value) -> Value:
        a, b = self.alike(a, b)
        return Value(self, getattr(self.builder, instruction)(a.code, b.code))

    def select(self, condition: Value, a: Operand, b: Operand) -> Value:
        condition, a, b = self.alike(condition, a, b)
        return Value(self, self.builder.select(condition.code, a.code, b.code))

    def intrinsic(self, name: str, of: Any, result: Any, *arguments: Value) -> Value:
        """A function of LLVM's own for a type, which becomes instructions of the processor."""
        suffix = "f32" if self.is_narrow else "f64"
        if isinstance(of, ir.VectorType):
            suffix = f"v{of.count}{suffix}"
        full = f"llvm.{name}.{suffix}"
        function = self.module.globals.get(full)
        if function is None:
            kinds = [value.code.type for value in arguments]
            function = ir.Function(self.module, ir.FunctionType(result, kinds), full)
        codes = [value.code for value in arguments]
        return Value(self, self.builder.call(function, codes, fastmath=self.flags))

    def multiply_add(self, a: Operand, b: Operand, c: Operand) -> Value:
        """a · b + c, in one instruction where the processor has it."""
        a, b, c = self.alike(a, b, c)
        return self.intrinsic("fmuladd", a.code.type, a.code.type, a, b, c)

    def abs(self, value: Value) -> Value:
        return self.intrinsic("fabs", value.code.type, value.code.type, value)

    def sqrt(self, value: Value) -> Value:
        return self.intrinsic("sqrt", value.code.type, value.code.type, value)

    def hidden_one(self) -> Value:
        """1, of which LLVM does not know that it is 1."""
        held = self.module.globals.get("qkv_one")
        if held is None:
            held = ir.GlobalVariable(self.module, self.real, "qkv_one")
            held.initializer = ir.Constant(self.real, 1.0)
        return self.load(held, self.index(0))

    # Bits

    def integers(self, value: Value, bits: int | None = None) -> Any:
        """The type of integers, as many as there are numbers."""
        of = ir.IntType(bits or (32 if self._is_single(value) else 64))
        return of if value.lanes == 1 else ir.VectorType(of, value.lanes)

    def _is_single(self, value: Value) -> bool:
        of = value.code.type
        return isinstance(of.element if isinstance(of, ir.VectorType) else of, ir.FloatType)

    def bits(self, value: Value) -> Value:
        return Value(self, self.builder.bitcast(value.code, self.integers(value)))

    def from_bits(self, value: Value, like: Value) -> Value:
        return Value(self, self.builder.bitcast(value.code, like.code.type))

    def integer(self, value: Value, instruction: str, constant: int) -> Value:
        """An integer instruction with a constant."""
        of = value.code.type
        scalar = of.element if isinstance(of, ir.VectorType) else of
        held = ir.Constant(scalar, constant)
        if isinstance(of, ir.VectorType):
            held = ir.Constant(of, [held] * of.count)
        return Value(self, getattr(self.builder, instruction)(value.code, held))

    # Memory

    def load(self, pointer: Any, index: Any, lanes: int = 1) -> Value:
        return Value(self, self.builder.load(self._place(pointer, index, lanes), align=self._size))

    def store(self, value: Value, pointer: Any, index: Any) -> None:
        place = self._place(pointer, index, value.lanes)
        self.builder.store(value.code, place, align=self._size)

    def add_to(self, pointer: Any, index: Any, value: Value) -> None:
        self.store(self.load(pointer, index, value.lanes) + value, pointer, index)

    @property
    def _size(self) -> int:
        return 4 if self.is_narrow else 8

    def _place(self, pointer: Any, index: Any, lanes: int) -> Any:
        place = self.builder.gep(pointer, [index])
        if lanes == 1:
            return place
        return self.builder.bitcast(place, ir.VectorType(self.real, lanes).as_pointer())

    def gather(self, pointer: Any, index: Any, step: Any, lanes: int) -> Value:
        """Numbers that lie `step` apart, as a vector."""
        if lanes == 1:
            return self.load(pointer, index)
        vector = ir.Constant(ir.VectorType(self.real, lanes), ir.Undefined)
        for lane in range(lanes):
            one = self.load(pointer, index)
            vector = self.builder.insert_element(vector, one.code, self.index(lane, 32))
            index = self.builder.add(index, step)
        return Value(self, vector)

    def scatter_add(self, pointer: Any, index: Any, step: Any, value: Value) -> None:
        if value.lanes == 1:
            self.add_to(pointer, index, value)
            return
        for lane in range(value.lanes):
            one = self.builder.extract_element(value.code, ir.Constant(ir.IntType(32), lane))
            self.add_to(pointer, index, Value(self, one))
            index = self.builder.add(index, step)

    def total(self, value: Value) -> Value:
        """The sum of a vector's numbers."""
        if value.lanes == 1:
            return value
        return self.intrinsic(
            "vector.reduce.fadd", value.code.type, self.real, self.number(0.0), value
        )

    def lane(self, value: Value, lane: int) -> Value:
        return Value(self, self.builder.extract_element(value.code, self.index(lane, 32)))

    # Whole numbers and loops

    def index(self, x: int, bits: int = 64) -> Any:
        return ir.Constant(ir.IntType(bits), x)

    def loop(
        self,
        start: Any,
        stop: Any,
        step: int,
        carried: Sequence[Value],
        body: Callable[[Any, list[Value]], Sequence[Value]],
    ) -> list[Value]:
        """for i in range(start, stop, step): carried = body(i, carried)."""
        builder = self.builder
        before = builder.block
        check, inside, after = (builder.append_basic_block() for _ in range(3))
        builder.branch(check)
        builder.position_at_end(check)
        i = builder.phi(WORD)
        i.add_incoming(start, before)
        phis = []
        for value in carried:
            phi = builder.phi(value.code.type)
            phi.add_incoming(value.code, before)
            phis.append(phi)
        builder.cbranch(builder.icmp_signed("<", i, stop), inside, after)
        builder.position_at_end(inside)
        results = body(i, [Value(self, phi) for phi in phis])
        following = builder.add(i, self.index(step), flags=("nsw",))
        end = builder.block
        builder.branch(check)
        i.add_incoming(following, end)
        for phi, value in zip(phis, results, strict=True):
            phi.add_incoming(value.code, end)
        builder.position_at_end(after)
        return [Value(self, phi) for phi in phis]

    def repeat(self, start: Any, stop: Any, step: int, body: Callable[[Any], None]) -> None:
        """for i in range(start, stop, step): body(i)."""

        def run(i: Any, carried: list[Value]) -> Sequence[Value]:
            body(i)
            return ()

        self.loop(start, stop, step, (), run)

    def whole(self, size: Any, step: int) -> Any:
        """The largest multiple of `step` up to `size`."""
        return self.builder.sub(size, self.builder.srem(size, self.index(step)))
