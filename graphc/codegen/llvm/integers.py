"""Functions of vectors of integers with wrap-around; quotients and remainders follow NumPy."""

from __future__ import annotations

from collections.abc import Callable

from graphc.codegen.llvm.lanes import Builder, IrValue, constant

_COMPARISONS = {
    "less": "<", "less_equal": "<=", "greater": ">", "greater_equal": ">=", "equal": "==",
    "not_equal": "!=",
}  # fmt: skip


def of_integers(builder: Builder, function: str, operands: list[IrValue]) -> IrValue:
    """Return a comparison or another function, by name, of vectors of integers of one dtype."""
    if function in _COMPARISONS:
        return builder.icmp_signed(_COMPARISONS[function], *operands)
    return _FUNCTIONS[function](builder, *operands)


def extreme_integer(builder: Builder, sign: str, a: IrValue, b: IrValue) -> IrValue:
    """Return a if `a sign b` holds, else b."""
    return builder.select(builder.icmp_signed(sign, a, b), a, b)


def _absolute(builder: Builder, x: IrValue) -> IrValue:
    below = builder.icmp_signed("<", x, constant(x.type, 0))
    return builder.select(below, builder.neg(x), x)


def _sign(builder: Builder, x: IrValue) -> IrValue:
    zero = constant(x.type, 0)
    above = builder.zext(builder.icmp_signed(">", x, zero), x.type)
    below = builder.zext(builder.icmp_signed("<", x, zero), x.type)
    return builder.sub(above, below)


def _shifted_left(builder: Builder, a: IrValue, b: IrValue) -> IrValue:
    """Shift left; counts of at least the width, and negative counts, yield 0."""
    inside = builder.icmp_unsigned("<", b, constant(b.type, a.type.element.width))
    count = builder.select(inside, b, constant(b.type, 0))
    return builder.select(inside, builder.shl(a, count), constant(a.type, 0))


def _shifted_right(builder: Builder, a: IrValue, b: IrValue) -> IrValue:
    most = constant(b.type, a.type.element.width - 1)
    inside = builder.icmp_unsigned("<", b, most)
    return builder.ashr(a, builder.select(inside, b, most))


def _safe(builder: Builder, b: IrValue) -> tuple[IrValue, IrValue]:
    """Return a mask of divisors 0 and -1, on which processors may trap, and the divisors with 1 in
    their place."""
    special = builder.or_(
        builder.icmp_signed("==", b, constant(b.type, 0)),
        builder.icmp_signed("==", b, constant(b.type, -1)),
    )
    return special, builder.select(special, constant(b.type, 1), b)


def _truncated_remainder(builder: Builder, a: IrValue, b: IrValue) -> IrValue:
    _, divisor = _safe(builder, b)
    return builder.srem(a, divisor)


def _differ(builder: Builder, rest: IrValue, b: IrValue) -> IrValue:
    """Return a mask: true if a remainder is not 0 and differs in sign from the divisor."""
    zero = constant(b.type, 0)
    signs = builder.icmp_signed("<", builder.xor(rest, b), zero)
    return builder.and_(builder.icmp_signed("!=", rest, zero), signs)


def _floored_remainder(builder: Builder, a: IrValue, b: IrValue) -> IrValue:
    rest = _truncated_remainder(builder, a, b)
    return builder.select(_differ(builder, rest, b), builder.add(rest, b), rest)


def _floored_quotient(builder: Builder, a: IrValue, b: IrValue) -> IrValue:
    special, divisor = _safe(builder, b)
    less = builder.zext(_differ(builder, builder.srem(a, divisor), divisor), a.type)
    found = builder.sub(builder.sdiv(a, divisor), less)
    return builder.select(special, builder.mul(a, b), found)


_FUNCTIONS: dict[str, Callable[..., IrValue]] = {
    "add": lambda b, x, y: b.add(x, y),
    "subtract": lambda b, x, y: b.sub(x, y),
    "multiply": lambda b, x, y: b.mul(x, y),
    "negative": lambda b, x: b.neg(x),
    "abs": _absolute,
    "sign": _sign,
    "maximum": lambda b, x, y: extreme_integer(b, ">=", x, y),
    "minimum": lambda b, x, y: extreme_integer(b, "<=", x, y),
    "bitwise_and": lambda b, x, y: b.and_(x, y),
    "bitwise_or": lambda b, x, y: b.or_(x, y),
    "bitwise_xor": lambda b, x, y: b.xor(x, y),
    "invert": lambda b, x: b.not_(x),
    "left_shift": _shifted_left,
    "right_shift": _shifted_right,
    "floor_divide": _floored_quotient,
    "remainder": _floored_remainder,
    "fmod": _truncated_remainder,
    "floor": lambda b, x: x,
    "ceil": lambda b, x: x,
    "rint": lambda b, x: x,
    "trunc": lambda b, x: x,
}

OF_INTEGERS = (*_COMPARISONS, *_FUNCTIONS, "where")
"""The names of the functions of integers."""
