"""Elementary functions for vectors: polynomials and bits, no call to libm.

Each is good to a few units in the last place, and takes NaN and the infinities as torch does;
results below the smallest normal number become 0. sin and cos are reduced by three parts of π/2,
which serves arguments up to 10⁶ in float64, and any that float32 tells apart.
"""

from __future__ import annotations

import math

from qkv.formula.vector import Value

LOG2_E = 1.4426950408889634074


def horner(x: Value, coefficients: list[float]) -> Value:
    """The polynomial whose highest coefficient comes first."""
    total = x.writer.number(coefficients[0], x.lanes)
    for coefficient in coefficients[1:]:
        total = total * x + coefficient
    return total


def exp(x: Value) -> Value:
    writer, narrow = x.writer, x.writer.is_narrow
    with writer.exactly():
        most, bias, shift = (127.0, 127, 23) if narrow else (1023.0, 1023, 52)
        # Adding 1.5 · 2^23 (2^52) rounds to an integer, which the low bits of the sum then hold.
        magic = 1.5 * 2.0**shift
        scaled = x * LOG2_E
        shifted = writer.select(scaled > most, most, scaled) + magic
        n = shifted - magic
        # ln 2 in two parts: the first product is exact.
        high, low = (
            (0.693359375, -2.12194440e-4)
            if narrow
            else (6.93147180369123816490e-01, 1.90821492927058770002e-10)
        )
        r = (x - n * high) - n * low
        degree = 7 if narrow else 13
        p = horner(r, [1 / math.factorial(k) for k in range(degree, 1, -1)])
        p = p * (r * r) + r + 1.0
        power = writer.integer(writer.integer(writer.bits(shifted), "add", bias), "shl", shift)
        value = p * writer.from_bits(power, x)
        lowest, highest = (-87.0, 88.7228317) if narrow else (-708.0, 709.782712893384)
        # The comparisons are false for NaN, which therefore passes through.
        value = writer.select(x < lowest, 0.0, value)
        return writer.select(x > highest, math.inf, value)


def log(x: Value) -> Value:
    writer, narrow = x.writer, x.writer.is_narrow
    with writer.exactly():
        shift, least = (23, 2.0**-126) if narrow else (52, 2.0**-1022)
        tiny = x < least
        normal = writer.select(tiny, x * 2.0**shift, x)
        # x = 2^k m with m in [√½, √2): √½ is where the bits are split.
        root = 0x3F3504F3 if narrow else 0x3FE6A09E667F3BCD
        offset = writer.integer(writer.bits(normal), "sub", root)
        exponent = writer.integer(offset, "ashr", shift)
        mantissa = writer.integer(writer.integer(offset, "and_", (1 << shift) - 1), "add", root)
        k = Value(writer, writer.builder.sitofp(exponent.code, x.code.type))
        k = writer.select(tiny, k - float(shift), k)
        f = writer.from_bits(mantissa, x) - 1.0
        s = f / (f + 2.0)
        z = s * s
        r = z * horner(z, _LOG32 if narrow else _LOG64)
        half = f * f * 0.5
        high, low = (
            (6.9313812256e-01, 9.0580006145e-06)
            if narrow
            else (6.93147180369123816490e-01, 1.90821492927058770002e-10)
        )
        value = k * high - ((half - (s * (half + r) + k * low)) - f)
        value = writer.select(x.equals(math.inf), math.inf, value)
        value = writer.select(x.equals(0.0), -math.inf, value)
        return writer.select(x >= 0.0, value, math.nan)


_LOG32 = [0.24279078841, 0.28498786688, 0.40000972152, 0.66666662693]
_LOG64 = [
    1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01,
    2.222219843214978396e-01, 2.857142874366239149e-01, 3.999999999940941908e-01,
    6.666666666666735130e-01,
]  # fmt: skip


def log1p(x: Value) -> Value:
    writer = x.writer
    with writer.exactly():
        whole = x + 1.0
        # What the sum has lost, taken up again.
        value = log(whole) + (x - (whole - 1.0)) / whole
        value = writer.select(whole.equals(0.0), -math.inf, value)
        value = writer.select(whole.equals(math.inf), math.inf, value)
        return writer.select(whole.equals(1.0), x, value)


def expm1(x: Value) -> Value:
    """e^x - 1 = tanh(x / 2) (e^x + 1), which cancels nowhere."""
    writer = x.writer
    with writer.exactly():
        power = exp(x)
        near = tanh(x * 0.5) * (power + 1.0)
        return writer.select(writer.abs(x) < 1.0, near, power - 1.0)


def tanh(x: Value) -> Value:
    writer = x.writer
    with writer.exactly():
        size, z = writer.abs(x), x * x
        if writer.is_narrow:
            near = horner(z, _TANH32) * z * x + x
        else:
            near = x + x * z * (horner(z, _TANH64_ABOVE) / horner(z, _TANH64_BELOW))
        power = exp(size * -2.0)
        far = (1.0 - power) / (1.0 + power)
        far = writer.select(x < 0.0, -far, far)
        return writer.select(size < 0.625, near, far)


# The coefficients of Cephes.
_TANH32 = [-5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1,
           -3.33332819422e-1]  # fmt: skip
_TANH64_ABOVE = [-9.64399179425052238628e-1, -9.92877231001918586564e1, -1.61468768441708447952e3]
_TANH64_BELOW = [1.0, 1.12811678491632931402e2, 2.23548839060100448583e3, 4.84406305325125486048e3]


def sigmoid(x: Value) -> Value:
    writer = x.writer
    power = exp(-writer.abs(x))
    return writer.select(x >= 0.0, 1.0, power) / (1.0 + power)


def softplus(x: Value) -> Value:
    """log(1 + e^x); beyond 20 it is x, as torch has it."""
    writer = x.writer
    value = writer.select(x > 0.0, x, 0.0) + log1p(exp(-writer.abs(x)))
    return writer.select(x > 20.0, x, value)


def erf(x: Value) -> Value:
    writer = x.writer
    with writer.exactly():
        size = writer.abs(x)
        near = x * horner(x * x, _ERF32 if writer.is_narrow else _ERF64)
        t = 1.0 / (size * 0.5 + 1.0)
        rest = horner(t, _ERFC32 if writer.is_narrow else _ERFC64) * exp(-(size * size))
        far = 1.0 - writer.select(size > 6.0, 0.0, rest)
        far = writer.select(x < 0.0, -far, far)
        return writer.select(size <= 1.0, near, writer.select(x.differs(x), x, far))


# erf(x) / x in x² up to 1, and erfc(x) e^(x²) in 1 / (1 + x/2) from there to 6; fitted by Chebyshev
# polynomials with 40 digits (mpmath.chebyfit).
_ERF32 = [7.87587506269e-5, -0.000801686428717, 0.00518908742343, -0.0268542120106,
          0.112835947152, -0.376126266667, 1.12837916585]  # fmt: skip
_ERFC32 = [0.10839819349, -0.433586576455, 0.508515860451, -0.0598443774563, 0.327061703027,
           0.265512955349, 0.284014920591, -9.56533318311e-5]  # fmt: skip
_ERF64 = [
    5.9571761477489114044e-11, -1.137284885679167367e-9, 1.4659775274047435814e-8,
    -1.6350312701054695011e-7, 1.6461000484121368033e-6, -0.000014925595266831181565,
    0.00012055331111642710923, -0.00085483269808337899052, 0.0052239776248180144673,
    -0.026866170645076793248, 0.11283791670954878666, -0.37612638903183748056,
    1.1283791670955125738,
]  # fmt: skip
_ERFC64 = [
    0.055250793978112520856, -0.50451457492718218862, 2.1189863599350698908,
    -5.3911954307297841216, 9.2010323547352147098, -11.027166089681997555,
    9.5048346418956642378, -6.0713140429776402579, 3.0713869822062802471,
    -1.2694736835598905624, 0.32375923408301363819, -0.098391986549245720332,
    0.10188117584549978297, 0.17363019992709062343, 0.24712577070718897396,
    0.28207247022251442353, 0.28209585138544854273, -2.3585086223305640162e-8,
]  # fmt: skip


def sin(x: Value) -> Value:
    return _circle(x, 0)


def cos(x: Value) -> Value:
    return _circle(x, 1)


def _circle(x: Value, quarter: int) -> Value:
    """sin(x + quarter · π/2), by what is left of x beyond whole quarters of a turn."""
    writer, of = x.writer, x.code.type
    if not writer.is_narrow:
        return _reduced(x, quarter)
    with writer.in_float64():  # where the difference keeps its digits
        wide = writer.number(0.0, x.lanes).code.type
        value = _reduced(Value(writer, writer.builder.fpext(x.code, wide)), quarter)
    return Value(writer, writer.builder.fptrunc(value.code, of))


def _reduced(x: Value, quarter: int) -> Value:
    writer = x.writer
    with writer.exactly():
        magic = 1.5 * 2.0**52
        shifted = x * (2 / math.pi) + magic
        n = shifted - magic
        left = (x - n * 1.57079632673412561417) - n * 6.07710050630396597660e-11
        left = left - n * 2.02226624879595063154e-21
        turn = writer.integer(writer.integer(writer.bits(shifted), "add", quarter), "and_", 3)
        z = left * left
        sine = left + left * z * horner(z, _SIN)
        cosine = 1.0 - z * 0.5 + z * z * horner(z, _COS)
        value = writer.select(_bit(turn, 1), cosine, sine)
        value = writer.select(_bit(turn, 2), -value, value)
        return value + (x - x)  # the infinities have no sine


def _bit(value: Value, mask: int) -> Value:
    writer = value.writer
    held = writer.integer(value, "and_", mask)
    zero = writer.integer(held, "and_", 0)
    return Value(writer, writer.builder.icmp_signed("!=", held.code, zero.code))


_SIN = [
    1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06,
    -1.98412698298579493134e-04, 8.33333333332248946124e-03, -1.66666666666666324348e-01,
]  # fmt: skip
_COS = [
    -1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07,
    2.48015872894767294178e-05, -1.38888888888741095749e-03, 4.16666666666666019037e-02,
]  # fmt: skip


def power(x: Value, exponent: Value) -> Value:
    """x^exponent by the logarithm; below 0 only whole exponents have one."""
    writer = x.writer
    size = writer.abs(x)
    value = exp(log(size) * exponent)
    value = writer.select(size.equals(0.0) & (exponent > 0.0), 0.0, value)
    value = writer.select(size.equals(0.0) & (exponent < 0.0), math.inf, value)
    odd = _is_whole(exponent) & ~_is_whole(exponent * 0.5)
    below = writer.select(_is_whole(exponent), writer.select(odd, -value, value), math.nan)
    value = writer.select(x < 0.0, below, value)
    return writer.select(exponent.equals(0.0) | x.equals(1.0), 1.0, value)


def _is_whole(x: Value) -> Value:
    writer = x.writer
    with writer.exactly():
        magic = 1.5 * 2.0 ** (23 if writer.is_narrow else 52)
        return ((x + magic) - magic).equals(x)
