"""Loads and stores of `LANES` elements of an operand along the innermost axis."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from graphc.codegen.llvm.kernel import INDEX, POINTER
from graphc.codegen.llvm.lanes import (
    LANES,
    MEMORY,
    Builder,
    IrValue,
    at,
    constant,
    either,
    first_lanes,
    gather,
    gather_at,
    index,
    lane_numbers,
    load,
    scatter,
    scatter_at,
    splat,
    store,
)
from graphc.codegen.llvm.scalar import LaneCode
from graphc.codegen.text.operands import Operand
from graphc.codegen.text.scalar import arithmetic_dtype
from graphc.ir.expression import Expression
from graphc.ir.types import DType, int64

Step = Literal["one", "unit", "apart", "turned", "broken"]
"""The access pattern of an operand along the innermost axis.

- "one": a single element. - "unit": contiguous elements. - "apart": elements with a constant
stride. - "turned": contiguous along the next outer axis, and read by tiles. - "broken": several
axes that cannot be merged.
"""


@dataclass(frozen=True, slots=True)
class Lying:
    """The properties of an operand on which a kernel's text depends."""

    name: str
    dtype: DType
    step: Step
    counts: bool
    """True if the operand is the index along an axis, which is not in memory."""
    axes: int = 1
    """The number of axes along a row; more than 1 only if they cannot be merged ("broken")."""


def lying(operand: Operand, turned: bool = False) -> Lying:
    """Return the properties of an operand, with the access pattern that its innermost stride
    allows."""
    inner = operand.strides[-1]
    step: Step = "turned" if turned else "one" if inner == 0 else "unit" if inner == 1 else "apart"
    return Lying(operand.name, operand.dtype, step, operand.buffer is None)


class NumberReader:
    """A reader of a kernel's arguments in the order in which the call lists them."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.pointers, self.numbers, self.first, self.last = builder.function.args
        self.numbers_read = self.pointers_read = 0

    def number(self) -> IrValue:
        """Return the next number of the kernel's array of numbers."""
        place = self.builder.gep(self.numbers, [index(self.numbers_read)], source_etype=INDEX)
        self.numbers_read += 1
        return self.builder.load(place, align=8, typ=INDEX)

    def some(self, count: int) -> list[IrValue]:
        """Return the next `count` numbers."""
        return [self.number() for _ in range(count)]

    def pointer(self) -> IrValue:
        """Return the next address of the kernel's array of buffer addresses."""
        place = self.builder.gep(self.pointers, [index(self.pointers_read)], source_etype=POINTER)
        self.pointers_read += 1
        return self.builder.load(place, align=8, typ=POINTER)


@dataclass(slots=True)
class Reached:
    """An operand at the beginning of a row: its address, or its value if it is an index."""

    lying: Lying
    base: IrValue
    """The address of the row's first element; for an index, its value there."""
    inner: IrValue
    """The stride along the row, in elements."""
    axes: Sequence[tuple[IrValue, IrValue]] = ()
    """Extents and strides of the axes of a row whose axes cannot be merged."""


def load_row(builder: Builder, code: LaneCode, reached: Reached) -> None:
    """Declare the variable of an operand that has one element for a whole row."""
    own = reached.lying
    if own.counts:
        code.hold(own.name, arithmetic_dtype(own.dtype), _counted(builder, reached, index(0)))
        return
    one = builder.load(reached.base, align=own.dtype.itemsize, typ=MEMORY[own.dtype])
    code.declare(own.name, own.dtype, splat(builder, one))


def _counted(builder: Builder, reached: Reached, place: IrValue) -> IrValue:
    """Return the values of an index operand at `LANES` elements from `place` on."""
    assert reached.lying.dtype == int64
    if reached.lying.step == "broken":
        return builder.add(splat(builder, reached.base), _broken(builder, reached, place))
    inner = index(0) if reached.lying.step == "one" else reached.inner
    return lane_numbers(builder, builder.add(reached.base, builder.mul(place, inner)), inner)


def _broken(builder: Builder, reached: Reached, place: IrValue) -> IrValue:
    """Return offsets of `LANES` elements along several axes that cannot be merged."""
    rest = lane_numbers(builder, place, index(1))
    offsets = constant(rest.type, 0)
    for extent, stride in reversed(reached.axes):
        many = splat(builder, extent)
        step = builder.mul(builder.urem(rest, many), splat(builder, stride))
        offsets, rest = builder.add(offsets, step), builder.udiv(rest, many)
    return offsets


def load_lanes(
    builder: Builder,
    code: LaneCode,
    operands: Sequence[Reached],
    place: IrValue,
    remaining: IrValue | None,
) -> None:
    """Declare the variables of operands that vary along a row, at `LANES` elements from `place` on.

    Only `remaining` elements exist, or all if that is None.
    """
    varying = [each for each in operands if each.lying.step != "one"]
    stored = [each for each in varying if not each.lying.counts]
    values = whole_or_masked(
        builder,
        remaining,
        lambda mask: [_stored_lanes(builder, each, place, mask) for each in stored],
    )
    for each, value in zip(stored, values, strict=True):
        code.declare(each.lying.name, each.lying.dtype, value)
    for each in varying:
        if each.lying.counts:
            code.hold(each.lying.name, int64, _counted(builder, each, place))


def _stored_lanes(builder: Builder, each: Reached, place: IrValue, mask: IrValue | None) -> IrValue:
    dtype = each.lying.dtype
    match each.lying.step:
        case "unit":
            return load(builder, at(builder, each.base, place, dtype), dtype, mask)
        case "turned":  # a row of its tile, which has all lanes
            return load(builder, each.base, dtype)
        case "broken":
            return gather_at(builder, each.base, _broken(builder, each, place), dtype, mask)
    base = at(builder, each.base, builder.mul(place, each.inner), dtype)
    return gather(builder, base, each.inner, dtype, mask)


Results = Sequence[tuple[Reached, IrValue]]
"""Pairs of an operand and the values to store to it."""


def store_lanes(
    builder: Builder, results: Results, place: IrValue, remaining: IrValue | None
) -> None:
    """Write `LANES` elements from `place` on. Only `remaining` of them exist; None means that all
    exist."""

    def stores(mask: IrValue | None) -> list[IrValue]:
        for reached, value in results:
            _store(builder, reached, value, place, mask)
        return []

    whole_or_masked(builder, remaining, stores)


def _store(
    builder: Builder, reached: Reached, value: IrValue, place: IrValue, mask: IrValue | None
) -> None:
    dtype = reached.lying.dtype
    if reached.lying.step == "unit":
        store(builder, value, at(builder, reached.base, place, dtype), dtype, mask)
    elif reached.lying.step == "broken":
        scatter_at(builder, value, reached.base, _broken(builder, reached, place), dtype, mask)
    else:
        base = at(builder, reached.base, builder.mul(place, reached.inner), dtype)
        scatter(builder, value, base, reached.inner, dtype, mask)


def whole_or_masked(
    builder: Builder,
    remaining: IrValue | None,
    access: Callable[[IrValue | None], list[IrValue]],
) -> list[IrValue]:
    """Write an access without a mask if all lanes exist, else one with a mask."""
    if remaining is None:
        return access(None)
    return either(
        builder,
        builder.icmp_signed(">=", remaining, index(LANES)),
        lambda: access(None),
        lambda: access(first_lanes(builder, remaining)),
    )


def evaluate(
    code: LaneCode,
    expressions: Sequence[tuple[str, Expression]],
    locals: Mapping[str, DType],
    targets: Sequence[Reached],
) -> list[tuple[Reached, IrValue]]:
    """Compute expressions in order, and return the outputs' values as stored in memory.

    Later expressions that read an output get its stored, rounded value.
    """
    by_name = {target.lying.name: target for target in targets}
    found = []
    for name, expression in expressions:
        if name in locals:
            code.define(name, locals[name], expression)
        else:
            target = by_name[name]
            found.append((target, code.define(name, target.lying.dtype, expression)))
    return found
