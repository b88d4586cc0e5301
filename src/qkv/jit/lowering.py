"""The builtins of compiled code, as Numba and LLVM understand them."""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, overload
from numba.np.arrayobj import make_array, populate_array

from qkv.jit.function import IN_ORDER, RELAXED
from qkv.jit.numba_target import jit

WORD, POINTER = ir.IntType(64), ir.IntType(8).as_pointer()


# `exp` subtracts a large constant that it has just added; `reassoc` would cancel the pair.
_exact = jit(IN_ORDER)


def _bit_cast(source: types.Type, target: types.Type) -> Any:
    """A jitted function that reads the bits of one type as another."""

    @intrinsic
    def cast(typing_context: Any, value: Any) -> Any:
        def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
            return builder.bitcast(arguments[0], context.get_value_type(target))

        return target(source), generate

    return cast


_float32_bits = _bit_cast(types.float32, types.int32)
_bits_float32 = _bit_cast(types.int32, types.float32)
_float64_bits = _bit_cast(types.float64, types.int64)
_bits_float64 = _bit_cast(types.int64, types.float64)


@_exact
def _exp32(x: Any) -> Any:
    # Adding 1.5 * 2^23 rounds to an integer, which the low bits of the sum then hold.
    shifted = x * numba.float32(1.44269504088896341) + numba.float32(12582912.0)
    n = shifted - numba.float32(12582912.0)
    # ln 2 in two parts: the first product is exact.
    r = x - n * numba.float32(0.693359375)
    r = r - n * numba.float32(-2.12194440e-4)
    p = numba.float32(1.9875691500e-4)
    p = p * r + numba.float32(1.3981999507e-3)
    p = p * r + numba.float32(8.3334519073e-3)
    p = p * r + numba.float32(4.1665795894e-2)
    p = p * r + numba.float32(1.6666665459e-1)
    p = p * r + numba.float32(5.0000001201e-1)
    p = p * (r * r) + r + numba.float32(1.0)
    power = _bits_float32(
        numba.int32((_float32_bits(shifted) + numba.int32(127)) << numba.int32(23))
    )
    # The comparison is false for NaN, which therefore passes through.
    return numba.float32(0.0) if x < numba.float32(-87.0) else p * power


@_exact
def _exp64(x: Any) -> Any:
    shifted = x * 1.4426950408889634074 + 6755399441055744.0
    n = shifted - 6755399441055744.0
    r = x - n * 6.93147180369123816490e-01
    r = r - n * 1.90821492927058770002e-10
    p = 1.0 / 6227020800.0
    p = p * r + 1.0 / 479001600.0
    p = p * r + 1.0 / 39916800.0
    p = p * r + 1.0 / 3628800.0
    p = p * r + 1.0 / 362880.0
    p = p * r + 1.0 / 40320.0
    p = p * r + 1.0 / 5040.0
    p = p * r + 1.0 / 720.0
    p = p * r + 1.0 / 120.0
    p = p * r + 1.0 / 24.0
    p = p * r + 1.0 / 6.0
    p = p * r + 0.5
    p = p * (r * r) + r + 1.0
    power = _bits_float64((_float64_bits(shifted) + 1023) << 52)
    return 0.0 if x < -708.0 else p * power


@_exact
def _ordered32(x: Any) -> Any:
    bits = _float32_bits(x)
    return numba.int32(bits ^ ((bits >> numba.int32(31)) & numba.int32(0x7FFFFFFF)))


@_exact
def _ordered64(x: Any) -> Any:
    bits = _float64_bits(x)
    return bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)


@_exact
def _unordered32(bits: Any) -> Any:
    return _bits_float32(numba.int32(bits ^ ((bits >> numba.int32(31)) & numba.int32(0x7FFFFFFF))))


@_exact
def _unordered64(bits: Any) -> Any:
    return _bits_float64(bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF))


def _by_type(narrow: types.Type, for_narrow: Any, for_wide: Any) -> Any:
    """A function that is one of two, by the type of what it is given."""

    def chosen(x: Any) -> Any:
        raise TypeError("only compiled code calls this")

    @overload(chosen, strict=False)
    def choose(x: Any) -> Any:
        function = for_narrow if x == narrow else for_wide
        return lambda x: function(x)

    return chosen


exp = _by_type(types.float32, _exp32, _exp64)
ordered = _by_type(types.float32, _ordered32, _ordered64)
unordered = _by_type(types.int32, _unordered32, _unordered64)


@jit(RELAXED | {"ninf"})
def finite_divide(numerator: Any, denominator: Any) -> Any:
    return numerator / denominator


@intrinsic
def noinline(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.function.attributes.add("noinline")
        # llvmlite knows the plain attributes only; this one is a key and a value.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def noalias(typing_context: Any) -> Any:
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        for argument in builder.function.args:
            if isinstance(argument.type, ir.PointerType):
                argument.add_attribute("noalias")
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def in_lines(typing_context: Any, buffer: Any, width: Any) -> Any:
    # Not `reshape`: Numba lets no function return an array that was not among its arguments.
    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        whole = make_array(buffer)(context, builder, arguments[0])
        lines = make_array(buffer)(context, builder)
        shape = builder.extract_value(whole.shape, 0), arguments[1]
        strides = builder.mul(arguments[1], whole.itemsize), whole.itemsize
        populate_array(lines, whole.data, shape, strides, whole.itemsize, meminfo=None)
        return lines._getvalue()

    return buffer(buffer, types.intp), generate


@intrinsic
def invoke(typing_context: Any, address: Any, arguments: Any) -> Any:
    for each in arguments.types:
        if isinstance(each, types.Array) and each.layout != "C":
            raise numba.errors.TypingError(f"a callback takes contiguous arrays, got {each}")

    def generate(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        words: list[Any] = []
        for i, of in enumerate(arguments.types):
            words += _words(context, builder, of, builder.extract_value(values[1], i))
        block = cgutils.alloca_once(builder, WORD, size=len(words))
        for i, word in enumerate(words):
            builder.store(word, builder.gep(block, [ir.Constant(WORD, i)]))
        callee_type = ir.FunctionType(ir.VoidType(), [POINTER]).as_pointer()
        callee = builder.inttoptr(values[0], callee_type)
        builder.call(callee, [builder.bitcast(block, POINTER)])
        return context.get_dummy_value()

    return types.void(address, arguments), generate


def _words(context: Any, builder: Any, of: Any, value: Any) -> list[Any]:
    """An operand as `arguments.pack` lays it out, in instructions."""
    if isinstance(of, types.Array):
        array = context.make_array(of)(context, builder, value)
        shape = cgutils.unpack_tuple(builder, array.shape, of.ndim)
        return [builder.ptrtoint(array.data, WORD), *shape]
    if isinstance(of, types.Float):
        wide = value if of == types.float64 else builder.fpext(value, ir.DoubleType())
        return [builder.bitcast(wide, WORD)]
    wide = context.cast(builder, value, of, types.int64)
    return [wide]


@intrinsic
def fetch_add(typing_context: Any, words: Any, place: Any, step: Any) -> Any:
    """Add `step` to `words[place]`, which threads share, and return what stood there before."""

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        word = builder.gep(arguments[0], [arguments[1]])
        return builder.atomic_rmw("add", word, arguments[2], "seq_cst")

    return types.int64(words, types.int64, types.int64), generate
