"""Scalar arithmetic that LLVM can vectorise.

A call to libm inside a loop keeps LLVM from vectorising it and costs 20 to 30 times as much, so
`exp` is a range reduction, a polynomial and an exponent set by a bit cast.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, overload

# What LLVM may assume. Never `nnan` or `ninf`: NaN in an attended key must show in the answer.
RELAXED = {"reassoc", "contract", "arcp", "nsz"}
# `error_model="numpy"`: a division must not branch to raise ZeroDivisionError.
TILE_OPTIONS: dict[str, Any] = {
    "nogil": True,
    "fastmath": RELAXED,
    "error_model": "numpy",
}
# Nobody but other kernels calls a tile function, so it needs no wrapper for Python or C. And it
# makes no arrays, so it need not count references (`_nrt`): its caller holds them, and counting
# those of all arguments, atomically, in every call would cost a third of a narrow tile's time.
INNER_OPTIONS: dict[str, Any] = {
    **TILE_OPTIONS,
    "_nrt": False,
    "no_cpython_wrapper": True,
    "no_cfunc_wrapper": True,
}
# `exp` subtracts a large constant that it has just added; `reassoc` would cancel the pair.
EXACT_OPTIONS: dict[str, Any] = {**INNER_OPTIONS, "fastmath": {"contract"}}


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


@numba.njit(**EXACT_OPTIONS)
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


@numba.njit(**EXACT_OPTIONS)
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


def exp(x: Any) -> Any:
    """e to the x, for x at most 88 (float32) or 709 (float64); tiny results become 0."""
    raise NotImplementedError("only compiled code calls this")


@overload(exp)
def _exp_overload(x: Any) -> Any:
    own = _exp32 if x == types.float32 else _exp64

    def implementation(x: Any) -> Any:
        return own(x)

    return implementation


@numba.njit(**EXACT_OPTIONS)
def _ordered32(x: Any) -> Any:
    bits = _float32_bits(x)
    return numba.int32(bits ^ ((bits >> numba.int32(31)) & numba.int32(0x7FFFFFFF)))


@numba.njit(**EXACT_OPTIONS)
def _ordered64(x: Any) -> Any:
    bits = _float64_bits(x)
    return bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF)


@numba.njit(**EXACT_OPTIONS)
def _unordered32(bits: Any) -> Any:
    return _bits_float32(numba.int32(bits ^ ((bits >> numba.int32(31)) & numba.int32(0x7FFFFFFF))))


@numba.njit(**EXACT_OPTIONS)
def _unordered64(bits: Any) -> Any:
    return _bits_float64(bits ^ ((bits >> 63) & 0x7FFFFFFFFFFFFFFF))


def ordered(x: Any) -> Any:
    """An integer that compares as x does; NaN lies beyond the infinities."""
    raise NotImplementedError("only compiled code calls this")


def unordered(bits: Any) -> Any:
    """The number that `ordered` made this integer of."""
    raise NotImplementedError("only compiled code calls this")


@overload(ordered)
def _ordered_overload(x: Any) -> Any:
    own = _ordered32 if x == types.float32 else _ordered64

    def implementation(x: Any) -> Any:
        return own(x)

    return implementation


@overload(unordered)
def _unordered_overload(bits: Any) -> Any:
    own = _unordered32 if bits == types.int32 else _unordered64

    def implementation(bits: Any) -> Any:
        return own(bits)

    return implementation


@numba.njit(**{**INNER_OPTIONS, "fastmath": RELAXED | {"ninf"}})
def finite_divide(numerator: Any, denominator: Any) -> Any:
    """A quotient of finite numbers.

    Only with `ninf` does LLVM use the machine's reciprocal estimate and a Newton step, three
    times as fast as a division. Callers check the range first; NaN still passes through.
    """
    return numerator / denominator


@intrinsic
def tile_function(typing_context: Any) -> Any:
    """Have LLVM compile the function that calls this on its own, with the widest vectors.

    Inlined into a driver, its loops would lose what LLVM knows of their arrays. And for
    processors with AVX-512 LLVM prefers vectors of half the width, a caution that costs these
    loops a third of their speed; elsewhere that changes nothing.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        builder.function.attributes.add("noinline")
        # llvmlite knows the plain attributes only; this one is a key and a value.
        set.add(builder.function.attributes, '"prefer-vector-width"="512"')
        return context.get_dummy_value()

    return types.void(), generate


@intrinsic
def take_ticket(typing_context: Any, counter: Any) -> Any:
    """Add one to `counter[0]`, a shared int64 array, and return what stood there before.

    Threads draw their next piece of work with this; no sum of numbers ever depends on it.
    """

    def generate(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        array = context.make_array(signature.args[0])(context, builder, arguments[0])
        return builder.atomic_rmw("add", array.data, ir.Constant(ir.IntType(64), 1), "seq_cst")

    return types.int64(counter), generate


@numba.njit(**INNER_OPTIONS)
def keeps(row_key: Any, column: Any, threshold: Any) -> Any:
    """Whether dropout keeps this pair: murmur3's finaliser of the pair's number."""
    x = numba.uint32(row_key ^ numba.uint32(numba.uint32(column) * numba.uint32(0x9E3779B1)))
    x = numba.uint32(x ^ (x >> numba.uint32(16)))
    x = numba.uint32(x * numba.uint32(0x85EBCA6B))
    x = numba.uint32(x ^ (x >> numba.uint32(13)))
    x = numba.uint32(x * numba.uint32(0xC2B2AE35))
    x = numba.uint32(x ^ (x >> numba.uint32(16)))
    return (x >> numba.uint32(8)) >= threshold
