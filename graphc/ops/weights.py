"""Weights that a function is given as values, in place of parameters that it makes.

A function either makes its weights, from sizes that the caller states, or takes them and has the
sizes from them. A size that is stated beside a weight has to be the weight's.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from graphc.errors import OptionError, ShapeError, quoted, truth
from graphc.ir.builder import as_value, parameter
from graphc.ir.graph import Initial, Value
from graphc.ir.types import DType


def given_weight(where: str, weight: Value, axes: str, trainable: bool = True) -> Value:
    """A weight with the axes that its form names, as ``(outputs, inputs)``."""
    if as_value(f"{where}: weight", weight).type.rank != axes.count(",") + 1:
        raise ShapeError(f"{where}: weight is {axes}, got {weight.type}")
    return frozen_alone(where, weight, trainable)


def frozen_alone(where: str, weight: Value, trainable: bool) -> Value:
    """A weight that is given; raises `OptionError` where ``trainable=False`` stands beside it."""
    if not truth(f"{where}: trainable", trainable):
        raise OptionError(
            f"{where}: trainable=False is for a weight that is made, and {weight!r} is given; make "
            "that one with trainable=False"
        )
    return weight


def agree(where: str, weight: Value, sizes: Mapping[str, tuple[object, object]]) -> None:
    """Raise `ShapeError` where a size is stated and not the weight's: name → (stated, weight's)."""
    for name, (stated, found) in sizes.items():
        if stated is not None and stated != found:
            raise ShapeError(
                f"{where}: {name} is {quoted(stated)}, but the weight, {weight.type}, has {found}; "
                "change one of the two, or leave out the size"
            )


def not_given(where: str, **sizes: object) -> OptionError:
    """The error that a weight is neither given nor to be made, as sizes are None."""
    missing = " and ".join(name for name, stated in sizes.items() if stated is None)
    return OptionError(
        f"{where}: {missing} not given; state {' and '.join(sizes)} for a weight that is made, or "
        "give one as weight="
    )


def he_weight(
    x: Value, shape: Sequence[int], fan_in: int, trainable: bool, initial: Initial | None = None
) -> Value:
    """A ``weight`` beside x, drawn by `initial`, or else uniformly within √(6 / fan_in)."""
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
    """A bias of a number an output: the one that is given, or made, or none.

    True stands for one that is made beside a weight that is made.
    """
    if isinstance(bias, Value):
        if bias.shape != (length,):
            raise ShapeError(f"{where}: bias has one number an output, ({length},), got {bias!r}")
        return bias
    is_wanted = bias is not None and truth(f"{where}: bias", bias, ", or a value")
    if not (is_wanted and is_made):
        return None
    return parameter("bias", (length,), dtype, trainable=trainable)
