"""Variances, norms, products and log-sum-exp along axes, composed of other ops.

Those of 16-bit floats are computed in float32: in float16, the square of 300 is infinite.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from graphc.errors import OptionError, number_between, quoted
from graphc.ir.graph import Value
from graphc.ir.op import is_16_bit
from graphc.ir.types import float32
from graphc.keywords import also_called
from graphc.ops.choice import cast, equal, where
from graphc.ops.elementwise import div, exp, float_dtype, log, mul, scale, sqrt, sub, zero
from graphc.ops.indexing import slice_
from graphc.ops.power import power
from graphc.ops.reduce import kept_shape, max, mean, min, reduced_axes, sum
from graphc.ops.rounding import abs
from graphc.ops.shape import full, reshape, transpose
from graphc.ops.stop_gradient import stop_gradient

Axes = int | Sequence[int] | None
F = TypeVar("F", bound=Callable[..., Value])


def in_float32(compute: F) -> F:
    """Return a function that computes in float32, and casts the result, if x is a 16-bit float."""

    @functools.wraps(compute)
    def computed(x: Value, *args: Any, **kwargs: Any) -> Value:
        if not isinstance(x, Value) or not is_16_bit(x):
            return compute(x, *args, **kwargs)
        return cast(compute(cast(x, float32), *args, **kwargs), x.type.dtype)

    return computed  # type: ignore[return-value]


@also_called("axes", "axis")
@in_float32
def var(x: Value, axes: Axes = None, ddof: float = 0, keepdims: bool = False) -> Value:
    """Return the variance of float x over `axes`, by default all: the mean of (x - mean)².

    The divisor is the number of elements minus `ddof`. The axes are dropped, or get extent 1 with
    `keepdims`. Raises `OptionError` unless the divisor is positive, `DTypeError` for other dtypes,
    and `ShapeError` for an axis that x does not have.
    """
    reduced = reduced_axes("var", x, axes)
    count = math.prod(x.shape[axis] for axis in reduced)
    freedom = count - number_between("ddof", ddof, -math.inf, math.inf)
    if not 0 < freedom < math.inf:
        raise OptionError(f"var: ddof must be less than the {count} elements, got {quoted(ddof)}")
    centred = sub(x, mean(x, reduced, keepdims=True))
    return scale(sum(mul(centred, centred), reduced, keepdims), 1 / freedom)


@also_called("axes", "axis")
@in_float32
def std(x: Value, axes: Axes = None, ddof: float = 0, keepdims: bool = False) -> Value:
    """Return the standard deviation of float x over `axes`: the square root of `var`.

    Where the result is 0, its gradient is 0. Raises the errors of `var`.
    """
    return _root(var(x, axes, ddof, keepdims), sqrt)


@also_called("axes", "axis")
@in_float32
def prod(x: Value, axes: Axes = None, keepdims: bool = False) -> Value:
    """Multiply over `axes`, by default all; they are dropped, or get extent 1 with `keepdims`.

    Integers keep their dtype, so products wrap around. The product is computed pairwise, without
    division, so the gradient is exact even if elements are 0. Raises `DTypeError` for bool, and
    `ShapeError` for an axis that x does not have.
    """
    reduced = reduced_axes("prod", x, axes)
    kept = [axis for axis in range(x.type.rank) if axis not in reduced]
    shape = kept_shape(x.shape, reduced, keepdims)
    if not reduced:
        return x
    first = transpose(x, (*reduced, *kept))
    rows = reshape(first, (-1, *(x.shape[axis] for axis in kept)))
    over = []
    while rows.shape[0] > 1:
        half = rows.shape[0] // 2
        if rows.shape[0] % 2:
            over.append(slice_(rows, slice(2 * half, None)))
        rows = mul(slice_(rows, slice(0, half)), slice_(rows, slice(half, 2 * half)))
    for row in over:
        rows = mul(rows, row)
    return reshape(rows, shape)


@also_called("axes", "axis")
@in_float32
def norm(x: Value, order: float = 2, axes: Axes = None, keepdims: bool = False) -> Value:
    """Return the norm of an order p of float x over `axes`, by default all: (Σ |x|ᵖ)^(1/p).

    Order inf is the largest |x|, -inf the smallest, and 0 counts nonzero elements, as
    `numpy.linalg.norm` does for vectors. Where a norm is 0, its gradient is 0. For an order below
    1, the gradient of an element that is 0 is 0. Raises `OptionError` for an order that is not a
    number, `DTypeError` for other dtypes, and `ShapeError` for an axis that x does not have.
    """
    reduced = reduced_axes("norm", x, axes)
    float_dtype(x.type)
    p = number_between("order", order, -math.inf, math.inf)
    if math.isinf(p):
        return (max if p > 0 else min)(abs(x), reduced, keepdims)
    if p == 0:
        return sum(
            where(equal(x, zero(x)), zero(x), full((), 1.0, x.type.dtype)), reduced, keepdims
        )
    if p == 1:
        return sum(abs(x), reduced, keepdims)
    root: Callable[[Value], Value] = sqrt if p == 2 else lambda total: power(total, 1 / p)
    if 0 < p < 1:
        powers = _root(abs(x), lambda size: power(size, p))
    else:
        powers = mul(x, x) if p == 2 else power(x if p > 0 and p % 2 == 0 else abs(x), p)
    return _root(sum(powers, reduced, keepdims), root)


def _root(total: Value, root: Callable[[Value], Value]) -> Value:
    """Return a root of a nonnegative value.

    At 0, the result and the gradient are 0; the true derivative is infinite.
    """
    is_0 = equal(total, zero(total))
    return where(is_0, zero(total), root(where(is_0, full((), 1.0, total.type.dtype), total)))


@also_called("axes", "axis")
@in_float32
def normalize(x: Value, order: float = 2, axes: int | Sequence[int] = -1) -> Value:
    """Divide float x by its `norm` along `axes`, or by 1 if the norm is 0. Keeps the shape.

    Raises the errors of `norm`.
    """
    length = norm(x, order, axes, keepdims=True)
    return div(x, where(equal(length, zero(length)), full((), 1.0, x.type.dtype), length))


@also_called("axes", "axis")
@in_float32
def logsumexp(x: Value, axes: Axes = None, keepdims: bool = False) -> Value:
    """Return the logarithm of the sum of exp(x) over `axes`, by default all, without overflow.

    x is a float, and the gradient is softmax. Elements of -inf add nothing; if all elements are
    -inf, the result is -inf. Raises `DTypeError` for other dtypes, and `ShapeError` for an axis
    that x does not have.
    """
    reduced = reduced_axes("logsumexp", x, axes)
    float_dtype(x.type)
    # The result does not depend on the peak, so no gradient flows through it.
    peak = stop_gradient(max(x, reduced, keepdims=True))
    finite = equal(sub(peak, peak), zero(peak))
    level = where(finite, peak, zero(peak))
    total = log(sum(exp(sub(x, level)), reduced, keepdims))
    return total + reshape(level, kept_shape(x.shape, reduced, keepdims))
