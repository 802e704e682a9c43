"""A check of gradients against central differences, for ops and functions of users."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from graphc.compiler.compile import compile
from graphc.errors import GradientError, OptionError, quoted
from graphc.ir.attributes import Between
from graphc.ir.builder import apply, as_values, input
from graphc.ir.graph import Input, Value
from graphc.ir.op import Op
from graphc.ops.elementwise import add, mul
from graphc.ops.reduce import sum as total
from graphc.passes.gradient import gradient

Made = Value | Sequence[Value]
Feeds = Mapping[str, NDArray[np.generic]]

ROUNDINGS = 100
"""The number of roundings of the loss that may add up in a difference."""

MOST_ELEMENTS = 200
"""Maximum number of elements of each input that are moved."""


@dataclass(frozen=True)
class GradientRow:
    """The largest difference of one gradient: that of `order` in the input of this number.

    `elements` of the input were moved. At `index`, where the difference is largest, the gradient
    is `found`, and `expected` by central differences. `allowed` is the largest difference that
    passes.
    """

    order: int
    input: int
    elements: int
    index: tuple[int, ...]
    found: float
    expected: float
    allowed: float

    @property
    def error(self) -> float:
        """The absolute difference; infinite if either number is not finite."""
        apart = abs(self.found - self.expected)
        return apart if math.isfinite(apart) else math.inf

    def __str__(self) -> str:
        at = f" at {list(self.index)}" if self.index else ""
        return (
            f"order {self.order}, input {self.input}: {self.elements} elements, largest difference "
            f"{self.error:.1e}{at}: {self.found:.9g}, and {self.expected:.9g} by differences"
        )


@dataclass(frozen=True)
class GradientCheck:
    """The result of `graphc.check_gradient`: one row for each order and float input."""

    rows: tuple[GradientRow, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.rows))


def check_gradient(
    function: Callable[..., Made] | type[Op],
    inputs: Sequence[ArrayLike],
    *,
    orders: int = 1,
    step: float = 1e-5,
    tolerance: float = 1e-6,
) -> GradientCheck:
    """Compare gradients with central differences, in float64 on the CPU.

    `function` maps values to a value or a tuple of values; an op class without attributes is such a
    function. `inputs` are arrays: floats become float64 and are moved by `step`, others stay as
    they are. At most 200 elements of each input are moved, spread evenly. The loss is a sum of all
    float outputs with random weights. With ``orders=2``, the gradient of the gradient is checked,
    too. Differences may be `tolerance` times the largest derivative by the same input, and as much
    as rounding of the loss adds to central differences.

    Raises `GradientError` with the place and both numbers if they differ by more, or if the loss
    does not depend on any input. Functions must not draw random numbers, and must be smooth near
    the inputs: at a kink, as of relu at 0, differences are wrong.
    """
    if orders not in (1, 2) or not isinstance(orders, int):
        raise OptionError(f"check_gradient: orders must be 1 or 2, got {orders!r}")
    Between(above=0).check("check_gradient: step", step)
    Between(0).check("check_gradient: tolerance", tolerance)
    if isinstance(inputs, str) or not isinstance(inputs, Sequence):
        raise OptionError(f"check_gradient: inputs must be a list of arrays, got {quoted(inputs)}")
    if isinstance(function, type) and (not issubclass(function, Op) or fields(function.attributes)):
        raise OptionError(
            f"check_gradient: {function.__name__} is not an op class without attributes; give a "
            "function that applies it"
        )
    if not callable(function):
        raise OptionError(
            f"check_gradient: function must be a function of values, got {quoted(function)}"
        )
    arrays = [_wide(np.asarray(array)) for array in inputs]
    values = [input(f"input{i}", x.shape, x.dtype.name) for i, x in enumerate(arrays)]
    made = apply(function, *values).outputs if isinstance(function, type) else function(*values)
    outputs = as_values(
        "check_gradient: outputs of the function", (made,) if isinstance(made, Value) else made
    )
    moved = [x for x in values if x.type.dtype.kind == "float"]
    feeds = {x.name: array for x, array in zip(values, arrays, strict=True)}
    rng = np.random.default_rng(0)
    rows: list[GradientRow] = []
    for order in range(1, orders + 1):
        loss, weights = _weighted(outputs, f"order{order}", rng)
        feeds |= weights
        outputs = gradient(loss, moved)
        rows += _rows(order, loss, moved, outputs, feeds, step, tolerance)
    for row in rows:
        if not row.error <= row.allowed:
            raise GradientError(
                f"the gradient differs from central differences:\n{GradientCheck(tuple(rows))}\n"
                "If the function has a kink near these inputs, check it at others; if it draws "
                "random numbers, as dropout does, check it without them; if it computes in "
                "float32, give a larger step= and tolerance=, such as 1e-2 and 1e-3"
            )
    return GradientCheck(tuple(rows))


def _wide(array: NDArray[np.generic]) -> NDArray[np.generic]:
    return array.astype(np.float64) if array.dtype.kind == "f" else array


def _weighted(
    outputs: Sequence[Value], tag: str, rng: np.random.Generator
) -> tuple[Value, dict[str, NDArray[np.generic]]]:
    """Return the sum of all float outputs with weights, and the weights by name."""
    terms, feeds = [], {}
    for i, value in enumerate(outputs):
        if value.type.dtype.kind == "float":
            weights = input(f"{tag}/weights{i}", value.shape, value.type.dtype)
            feeds[weights.name] = rng.uniform(0.5, 1.5, value.shape).astype(value.type.dtype.numpy)
            terms.append(total(mul(value, weights)))
    if not terms:
        raise GradientError(
            "check_gradient: the function has no float output; without one there is no gradient"
        )
    loss = terms[0]
    for term in terms[1:]:
        loss = add(loss, term)
    return loss, feeds


def _rows(
    order: int, loss: Value, moved: Sequence[Input], gradients: Sequence[Value], feeds: Feeds,
    step: float, tolerance: float,
) -> list[GradientRow]:  # fmt: skip
    named = {x.name: derivative for x, derivative in zip(moved, gradients, strict=True)}
    both = compile(outputs={"loss": loss, **named}, training=True)
    forward = compile(outputs={"loss": loss}, training=True)
    if order == 1 and not any(x in forward.graph.inputs for x in moved):
        raise GradientError(
            "check_gradient: the function depends on none of its float inputs, so there is nothing "
            "to check; give a function that computes its outputs from its arguments"
        )
    other = [x.name for x in both.graph.inputs if x.name not in feeds]
    if other:
        raise OptionError(f"check_gradient: the function reads {other[0]!r}, which is no argument")
    found = {
        name: np.array(array)
        for name, array in both.step({x.name: feeds[x.name] for x in both.graph.inputs}).items()
    }
    rounding = ROUNDINGS * np.finfo(np.float64).eps * abs(float(found["loss"])) / step
    given = {x.name: feeds[x.name] for x in forward.graph.inputs}

    def loss_at(name: str, index: tuple[int, ...], shift: float) -> float:
        array = given[name].copy()
        array[index] += shift
        return float(forward.step({**given, name: array})["loss"])

    rows = []
    for number, x in enumerate(moved):
        chosen = [tuple(map(int, np.unravel_index(i, x.shape))) for i in _chosen(x.type.elements)]
        worst, largest = None, 0.0
        for index in chosen:
            expected = 0.0
            if x.name in given:
                ends = (loss_at(x.name, index, shift) for shift in (step, -step))
                expected = (next(ends) - next(ends)) / (2 * step)
            at = float(found[x.name][index])
            row = GradientRow(order, number, len(chosen), index, at, expected, 0.0)
            largest = max(largest, abs(expected)) if math.isfinite(expected) else largest
            if worst is None or row.error > worst.error:
                worst = row
        if worst is not None:
            rows.append(replace(worst, allowed=tolerance * largest + rounding))
    return rows


def _chosen(size: int) -> list[int]:
    """Return at most `MOST_ELEMENTS` positions, spread evenly."""
    return sorted({int(i) for i in np.linspace(0, size - 1, min(size, MOST_ELEMENTS))})
