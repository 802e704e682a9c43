"""Weights of layer functions: values given by the caller, or new parameters.

A layer function either creates its weights from sizes such as `outputs`, or takes existing weights,
which determine the sizes. A size given together with a weight must equal that of the weight.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from graphc.errors import DTypeError, OptionError, ShapeError, quoted, truth
from graphc.ir.builder import as_value, parameter
from graphc.ir.graph import Initial, Value
from graphc.ir.types import DType


def given_weight(where: str, weight: Value, axes: str, trainable: bool = True) -> Value:
    """Return a given weight.

    Raises an error unless it has the axes `axes`, such as ``(outputs, inputs)``.
    """
    if as_value(f"{where}: weight", weight).type.rank != axes.count(",") + 1:
        raise ShapeError(f"{where}: weight must be {axes}, got {weight.type}")
    return frozen_alone(where, weight, trainable)


def frozen_alone(where: str, weight: Value, trainable: bool) -> Value:
    """Return a given weight; raises `OptionError` if it is combined with ``trainable=False``."""
    if not truth(f"{where}: trainable", trainable):
        raise OptionError(
            f"{where}: trainable=False applies only to a weight that the layer creates, but "
            f"{weight!r} is given; create that one with trainable=False"
        )
    return weight


def agree(where: str, weight: Value, sizes: Mapping[str, tuple[object, object]]) -> None:
    """Raise `ShapeError` if a given size differs from the weight's; `sizes` maps names to both."""
    for name, (stated, found) in sizes.items():
        if stated is not None and stated != found:
            raise ShapeError(
                f"{where}: {name} is {quoted(stated)}, but the weight, {weight.type}, has "
                f"{found}; change one of them, or omit the size"
            )


def not_given(where: str, **sizes: object) -> OptionError:
    """Return the error for a missing weight that cannot be created: some `sizes` are None."""
    missing = " and ".join(name for name, stated in sizes.items() if stated is None)
    return OptionError(
        f"{where}: {missing} not given; give {' and '.join(sizes)} to create a weight, or pass "
        "one as weight="
    )


def he_weight(
    where: str,
    x: Value,
    shape: Sequence[int],
    fan_in: int,
    trainable: bool,
    initial: Initial | None = None,
) -> Value:
    """Create a ``weight`` of x's dtype by `initial`, by default uniform within ±√(6 / fan_in).

    Raises `DTypeError` unless the dtype is a float.
    """
    dtype = x.type.dtype
    if dtype.kind != "float":
        raise DTypeError(f"{where}: needs a float dtype, got {dtype}; convert with graphc.cast")
    drawn = initial or Initial("uniform", math.sqrt(6 / fan_in))
    return parameter("weight", shape, dtype, drawn, trainable)


def bias_of(
    where: str,
    bias: Value | bool | None,
    length: int,
    dtype: DType,
    trainable: bool,
    is_made: bool,
) -> Value | None:
    """Return a bias (length,): the given value, a new parameter, or None.

    With `bias` True, a parameter is created if `is_made`, that is, if the weight is created, too.
    """
    if isinstance(bias, Value):
        if bias.shape != (length,):
            raise ShapeError(
                f"{where}: bias must have one number per output, ({length},), got {bias!r}"
            )
        return bias
    is_wanted = bias is not None and truth(f"{where}: bias", bias, ", or a value")
    if not (is_wanted and is_made):
        return None
    return parameter("bias", (length,), dtype, trainable=trainable)
