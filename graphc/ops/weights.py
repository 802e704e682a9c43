"""Weights given to a layer function as values, instead of parameters that it creates.

A function either creates its weights from given sizes, or takes weights and their sizes. A size
given together with a weight has to be the weight's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from graphc.errors import OptionError, ShapeError, quoted, truth
from graphc.ir.builder import as_value, parameter
from graphc.ir.graph import Initial, Value
from graphc.ir.types import DType


def given_weight(where: str, weight: Value, axes: str, trainable: bool = True) -> Value:
    """Return a weight with the axes of a form such as ``(outputs, inputs)``."""
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
    """Raise `ShapeError` if a given size is not the weight's: name → (given, weight's)."""
    for name, (stated, found) in sizes.items():
        if stated is not None and stated != found:
            raise ShapeError(
                f"{where}: {name} is {quoted(stated)}, but the weight, {weight.type}, has "
                f"{found}; change one of them, or omit the size"
            )


def not_given(where: str, **sizes: object) -> OptionError:
    """Return the error for a weight that is not given and cannot be created, as sizes are None."""
    missing = " and ".join(name for name, stated in sizes.items() if stated is None)
    return OptionError(
        f"{where}: {missing} not given; give {' and '.join(sizes)} to create a weight, or pass "
        "one as weight="
    )


def he_weight(
    x: Value, shape: Sequence[int], fan_in: int, trainable: bool, initial: Initial | None = None
) -> Value:
    """Create a ``weight`` of x's dtype, by `initial`, or else uniform within √(6 / fan_in)."""
    drawn = initial or Initial("uniform", math.sqrt(6 / fan_in))
    return parameter("weight", shape, x.type.dtype, drawn, trainable)


def bias_of(
    where: str,
    bias: Value | bool | None,
    length: int,
    dtype: DType,
    trainable: bool,
    is_made: bool,
) -> Value | None:
    """Return a bias with one number per output: a given one, a new one, or none.

    True creates one if the weight is created, too.
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
