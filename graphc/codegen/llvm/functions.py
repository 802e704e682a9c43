"""Elementary functions of vectors of floats.

The float32 functions in which networks spend time are polynomials in float32: exp, tanh, erf,
sigmoid. The others of float32 are computed in float64 and rounded once. exp and log of float64 are
polynomials, too. For the rest, the C library is called once per lane.

Sources of the coefficients: S. Moshier's Cephes (exp, tanh), N. Juffa's erff, and fdlibm (log, sin,
cos). `tests/codegen/llvm/test_functions.py` checks that errors are at most 2 units in the last
place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from llvmlite import ir

from graphc.codegen.llvm.kernel import INDEX
from graphc.codegen.llvm.lanes import (
    DOUBLE,
    FLOAT,
    LANES,
    WORD,
    Builder,
    IrValue,
    constant,
    declared,
    either,
    index,
    intrinsic,
    loop,
    stack,
    vector,
)

F32, F64 = vector(FLOAT), vector(DOUBLE)


def polynomial(builder: Builder, x: IrValue, coefficients: Sequence[float]) -> IrValue:
    """Evaluate a polynomial by Horner's rule, the coefficient of the highest power first."""
    total = constant(x.type, coefficients[0])
    for number in coefficients[1:]:
        total = intrinsic(builder, "fma", total, x, constant(x.type, number))
    return total


def exponential(builder: Builder, x: IrValue) -> IrValue:
    """Return exp(x) of any x, including infinite, zero and subnormal results."""
    low, high = (-104.0, 89.0) if x.type == F32 else (-746.0, 710.0)
    x = builder.select(
        builder.fcmp_ordered("<", x, constant(x.type, low)), constant(x.type, low), x
    )
    x = builder.select(
        builder.fcmp_ordered(">", x, constant(x.type, high)), constant(x.type, high), x
    )
    result, power = _exponential_parts(builder, x)
    half = builder.ashr(power, constant(power.type, 1))
    # In two factors: 2^n alone may be subnormal, and only the second product rounds.
    result = builder.fmul(result, _power_of_two(builder, half))
    return builder.fmul(result, _power_of_two(builder, builder.sub(power, half)))


def bounded_exponential(builder: Builder, x: IrValue) -> IrValue:
    """Return exp(x) of float32 x between -87 and 88, for which the result is a normal number."""
    result, power = _exponential_parts(builder, x)
    return builder.fmul(result, _power_of_two(builder, power))


def decaying_exponential(builder: Builder, x: IrValue) -> IrValue:
    """Return exp(x) of x up to 88; results below 1.7e-38 (float64: 3.4e-308) are 0."""
    lowest = constant(x.type, -87.0 if x.type == F32 else -708.0)
    small = builder.fcmp_ordered("<", x, lowest)
    result, power = _exponential_parts(builder, builder.select(small, lowest, x))
    result = builder.fmul(result, _power_of_two(builder, power))
    return builder.select(small, constant(x.type, 0.0), result)


def _exponential_parts(builder: Builder, x: IrValue) -> tuple[IrValue, IrValue]:
    """Return exp(r) and n with exp(x) = 2^n · exp(r) and |r| <= log(2) / 2."""
    single = x.type == F32
    # Adding 1.5 · 2^23 leaves the nearest integer in the lowest bits, and some integer for NaN.
    magic = constant(x.type, 1.5 * 2.0 ** (23 if single else 52))
    raised = intrinsic(builder, "fma", x, constant(x.type, 1 / math.log(2)), magic)
    n = builder.fsub(raised, magic)
    upper, lower = (0.693359375, -2.12194440e-4) if single else _LOG2
    r = intrinsic(builder, "fma", n, constant(x.type, -upper), x)
    r = intrinsic(builder, "fma", n, constant(x.type, -lower), r)
    integer = vector(WORD if single else INDEX)
    power = builder.sub(builder.bitcast(raised, integer), builder.bitcast(magic, integer))
    if not single:
        return polynomial(builder, r, [1 / math.factorial(k) for k in range(13, -1, -1)]), power
    rest = intrinsic(builder, "fma", polynomial(builder, r, _EXP32), builder.fmul(r, r), r)
    return builder.fadd(rest, constant(x.type, 1.0)), power


_LOG2 = 6.93147180369123816490e-01, 1.90821492927058770002e-10
_EXP32 = (
    1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3, 4.1665795894e-2, 1.6666665459e-1,
    5.0000001201e-1,
)  # fmt: skip


def _power_of_two(builder: Builder, n: IrValue) -> IrValue:
    single = n.type.element == WORD
    bias, shift = (127, 23) if single else (1023, 52)
    bits = builder.shl(builder.add(n, constant(n.type, bias)), constant(n.type, shift))
    return builder.bitcast(bits, F32 if single else F64)


def logarithm(builder: Builder, x: IrValue) -> IrValue:
    """Return log(x) of float64 by fdlibm: x = 2^k · m, s = (m - 1) / (m + 1), a polynomial in
    s²."""
    integer = vector(INDEX)
    tiny = builder.fcmp_ordered("<", x, constant(F64, 2.0**-1022))
    normal = builder.select(tiny, builder.fmul(x, constant(F64, 2.0**54)), x)
    shift = builder.select(tiny, constant(integer, 54), constant(integer, 0))
    bits = builder.bitcast(normal, integer)
    # m starts at sqrt(1/2): the exponent rises by one if the fraction is above sqrt(2).
    from_root = builder.sub(bits, constant(integer, 0x3FE6A09E667F3BCD))
    k = builder.ashr(from_root, constant(integer, 52))
    kept = builder.sub(bits, builder.shl(k, constant(integer, 52)))
    f = builder.fsub(builder.bitcast(kept, F64), constant(F64, 1.0))
    power = _small_integer(builder, builder.sub(k, shift))
    s = builder.fdiv(f, builder.fadd(f, constant(F64, 2.0)))
    z = builder.fmul(s, s)
    rest = builder.fmul(polynomial(builder, z, _LOG64), z)
    half = builder.fmul(builder.fmul(f, f), constant(F64, 0.5))
    inner = builder.fmul(s, builder.fadd(half, rest))
    inner = intrinsic(builder, "fma", power, constant(F64, _LOG2[1]), inner)
    result = builder.fsub(builder.fsub(half, inner), f)
    result = intrinsic(builder, "fma", power, constant(F64, _LOG2[0]), builder.fneg(result))
    special = builder.fcmp_unordered("ueq", x, constant(F64, math.inf))
    result = builder.select(special, x, result)
    zero = builder.fcmp_ordered("==", x, constant(F64, 0.0))
    result = builder.select(zero, constant(F64, -math.inf), result)
    negative = builder.fcmp_ordered("<", x, constant(F64, 0.0))
    return builder.select(negative, constant(F64, math.nan), result)


_LOG64 = (
    1.479819860511658591e-01, 1.531383769920937332e-01, 1.818357216161805012e-01,
    2.222219843214978396e-01, 2.857142874366239149e-01, 3.999999999940941908e-01,
    6.666666666666735130e-01,
)  # fmt: skip


def _small_integer(builder: Builder, n: IrValue) -> IrValue:
    """Convert 64-bit integers below 2^31 to float64; few machines convert from 64 bits directly."""
    return builder.sitofp(builder.trunc(n, vector(WORD)), F64)


def log_of_one_more(builder: Builder, x: IrValue) -> IrValue:
    """Return log(1 + x) of float64, corrected by the rounding error of 1 + x."""
    one = constant(F64, 1.0)
    u = builder.fadd(x, one)
    rounded = builder.fsub(x, builder.fsub(u, one))
    found = logarithm(builder, u)
    inside = builder.and_(
        builder.fcmp_ordered(">", u, constant(F64, 0.0)),
        builder.fcmp_ordered("<", u, constant(F64, math.inf)),
    )
    better = builder.fadd(found, builder.fdiv(rounded, u))
    found = builder.select(inside, better, found)
    tiny = builder.fcmp_ordered("<", _absolute(builder, x), constant(F64, 2.0**-60))
    return builder.select(tiny, x, found)  # keeps -0.0, too


def exponential_less_one(builder: Builder, x: IrValue) -> IrValue:
    """Return exp(x) - 1 in float64, accurate enough for float32: x + x²/2 if exp(x) is close
    to 1."""
    far = builder.fsub(exponential(builder, x), constant(F64, 1.0))
    near = intrinsic(builder, "fma", builder.fmul(x, x), constant(F64, 0.5), x)
    close = builder.fcmp_ordered("<", _absolute(builder, x), constant(F64, 2.0**-18))
    # x itself, not x + x² / 2, keeps the sign of -0.0.
    zero = builder.fcmp_ordered("==", x, constant(F64, 0.0))
    return builder.select(zero, x, builder.select(close, near, far))


def _absolute(builder: Builder, x: IrValue) -> IrValue:
    return intrinsic(builder, "fabs", x)


def hyperbolic_tangent(builder: Builder, x: IrValue) -> IrValue:
    """Return tanh(x) of float32: an odd polynomial near 0, and 1 - 2 / (exp(2|x|) + 1)
    elsewhere."""
    size = _absolute(builder, x)
    square = builder.fmul(x, x)
    rest = builder.fmul(polynomial(builder, square, _TANH32), square)
    near = intrinsic(builder, "fma", rest, x, x)
    # From 10 on it is 1.
    within = builder.select(
        builder.fcmp_ordered(">", size, constant(F32, 10.0)), constant(F32, 10.0), size
    )
    grown = bounded_exponential(builder, builder.fadd(within, within))
    part = builder.fdiv(constant(F32, 2.0), builder.fadd(grown, constant(F32, 1.0)))
    far = builder.fsub(constant(F32, 1.0), part)
    # `>` is false for NaN, which so takes the near branch.
    is_far = builder.fcmp_ordered(">", size, constant(F32, 0.625))
    # The sign of -0.0 is that of x, too.
    return intrinsic(builder, "copysign", builder.select(is_far, far, near), x)


_TANH32 = (
    -5.70498872745e-3, 2.06390887954e-2, -5.37397155531e-2, 1.33314422036e-1, -3.33332819422e-1,
)  # fmt: skip


def error_function(builder: Builder, x: IrValue) -> IrValue:
    """Return erf(x) of float32: an odd polynomial near 0, and 1 - exp(polynomial) elsewhere."""
    size, square = _absolute(builder, x), builder.fmul(x, x)
    near = intrinsic(builder, "fma", polynomial(builder, square, _ERF32), x, x)
    # For |x| of 4 and more, erf is 1 in float32, but the polynomial would deviate from it.
    within = builder.select(
        builder.fcmp_ordered(">", size, constant(F32, 4.0)), constant(F32, 4.0), size
    )
    power = intrinsic(
        builder, "fma", polynomial(builder, within, _ERF32_FAR), within, builder.fneg(within)
    )
    far = builder.fsub(constant(F32, 1.0), bounded_exponential(builder, power))
    far = intrinsic(builder, "copysign", far, x)
    is_far = builder.fcmp_ordered(">", size, constant(F32, 0.921875))
    return builder.select(is_far, far, near)


_ERF32 = (
    -5.96761703e-4, 4.99119423e-3, -2.67681349e-2, 1.12819925e-1, -3.76125336e-1, 1.28379166e-1,
)  # fmt: skip
_ERF32_FAR = (
    -1.72853470e-5, 3.83197126e-4, -3.88396438e-3, 2.42546219e-2, -1.06777877e-1, -6.34846687e-1,
    -1.28717512e-1,
)  # fmt: skip


def sigmoid(builder: Builder, x: IrValue) -> IrValue:
    """Return 1 / (1 + exp(-x)); for x < 0 as exp(x) / (1 + exp(x)), which does not overflow."""
    one = constant(x.type, 1.0)
    e = exponential(builder, builder.fneg(_absolute(builder, x)))
    negative = builder.fcmp_ordered("<", x, constant(x.type, 0.0))
    return builder.fdiv(builder.select(negative, e, one), builder.fadd(one, e))


FAR = 2.0**26
"""Largest angle that is reduced by three parts of pi / 2 (Cody and Waite); the C library reduces
others."""


def sine(builder: Builder, x: IrValue, quarter: int) -> IrValue:
    """Return sin(x + quarter · pi / 2) in float64, for float32 values of x. No such x is closer to
    a multiple of pi / 2 than the three parts of pi / 2 resolve.
    """
    size = _absolute(builder, x)
    is_far = builder.fcmp_ordered(">", size, constant(F64, FAR))
    near = builder.select(is_far, constant(F64, 0.0), x)
    found = _near_sine(builder, near, quarter)
    # The sine of -0.0 is -0.0.
    if quarter == 0:
        zero = builder.fcmp_ordered("==", x, constant(F64, 0.0))
        found = builder.select(zero, x, found)

    def by_library() -> Sequence[IrValue]:
        exact = by_lane(builder, "cos" if quarter else "sin", x)
        return [builder.select(is_far, exact, found)]

    any_far = builder.icmp_unsigned(
        "!=", builder.bitcast(is_far, ir.IntType(LANES)), ir.Constant(ir.IntType(LANES), 0)
    )
    return either(builder, any_far, by_library, lambda: [found])[0]


def _near_sine(builder: Builder, x: IrValue, quarter: int) -> IrValue:
    magic = constant(F64, 1.5 * 2.0**52)
    raised = intrinsic(builder, "fma", x, constant(F64, 2 / math.pi), magic)
    n, r = builder.fsub(raised, magic), x
    for part in _HALF_PI:
        r = intrinsic(builder, "fma", n, constant(F64, -part), r)
    z = builder.fmul(r, r)
    odd = intrinsic(builder, "fma", builder.fmul(polynomial(builder, z, _SIN64), z), r, r)
    even = polynomial(builder, z, (*_COS64, -0.5, 1.0))
    integer = vector(INDEX)
    turns = builder.add(builder.bitcast(raised, integer), constant(integer, quarter))
    one = constant(integer, 1)
    is_even = builder.icmp_signed("!=", builder.and_(turns, one), constant(integer, 0))
    value = builder.select(is_even, even, odd)
    is_negative = builder.icmp_signed(
        "!=", builder.and_(turns, constant(integer, 2)), constant(integer, 0)
    )
    return builder.select(is_negative, builder.fneg(value), value)


_HALF_PI = (1.5707963267948966, 6.123233995736766e-17, -1.4973849048591833e-33)
_SIN64 = (
    1.58969099521155010221e-10, -2.50507602534068634195e-08, 2.75573137070700676789e-06,
    -1.98412698298579493134e-04, 8.33333333332248946124e-03, -1.66666666666666324348e-01,
)  # fmt: skip
_COS64 = (
    -1.13596475577881948265e-11, 2.08757232129817482790e-09, -2.75573143513906633035e-07,
    2.48015872894767294178e-05, -1.38888888888741095749e-03, 4.16666666666666019037e-02,
)  # fmt: skip


def by_lane(builder: Builder, name: str, *operands: IrValue) -> IrValue:
    """Call a float64 function of the C library for each lane, one after another."""
    slots = [stack(builder, F64) for _ in operands]
    for slot, operand in zip(slots, operands, strict=True):
        builder.store(operand, slot)
    function = declared(builder, name, DOUBLE, [DOUBLE] * len(operands))

    def lane(number: IrValue, carried: list[IrValue]) -> Sequence[IrValue]:
        places = [builder.gep(slot, [number], source_etype=DOUBLE) for slot in slots]
        given = [builder.load(place, typ=DOUBLE) for place in places]
        builder.store(builder.call(function, given), places[0])
        return ()

    loop(builder, index(0), index(LANES), 1, (), lane)
    return builder.load(slots[0], typ=F64)
