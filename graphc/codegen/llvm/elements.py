"""How a kernel reads and writes `LANES` places of an operand along the innermost axis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from graphc.codegen.llvm.kernel import INDEX, POINTER
from graphc.codegen.llvm.lanes import (
    LANES,
    MEMORY,
    Builder,
    IrValue,
    at,
    either,
    first_lanes,
    gather,
    index,
    lane_numbers,
    load,
    scatter,
    splat,
    store,
)
from graphc.codegen.llvm.scalar import LaneCode
from graphc.codegen.text.operands import Operand
from graphc.codegen.text.scalar import arithmetic_dtype
from graphc.ir.types import DType, int64

Step = Literal["one", "unit", "apart", "turned"]
"""Along the innermost axis an operand has one element, neighbours, or elements some way apart; a
turned one has its neighbours along the axis before, and is read by tiles."""


@dataclass(frozen=True, slots=True)
class Lying:
    """What a kernel's text depends on of an operand."""

    name: str
    dtype: DType
    step: Step
    counts: bool
    """Whether it is the place's number along an axis, and in no memory."""


def lying(operand: Operand, turned: bool = False) -> Lying:
    """An operand as its innermost stride lets a kernel read it."""
    inner = operand.strides[-1]
    step: Step = "turned" if turned else "one" if inner == 0 else "unit" if inner == 1 else "apart"
    return Lying(operand.name, operand.dtype, step, operand.buffer is None)


class NumberReader:
    """Reads a kernel's numbers one after another, as they were written."""

    def __init__(self, builder: Builder) -> None:
        self.builder = builder
        self.pointers, self.numbers, self.first, self.last = builder.function.args
        self.numbers_read = self.pointers_read = 0

    def number(self) -> IrValue:
        """The next number."""
        place = self.builder.gep(self.numbers, [index(self.numbers_read)], source_etype=INDEX)
        self.numbers_read += 1
        return self.builder.load(place, align=8, typ=INDEX)

    def some(self, count: int) -> list[IrValue]:
        """So many next numbers."""
        return [self.number() for _ in range(count)]

    def pointer(self) -> IrValue:
        """The address of the next buffer."""
        place = self.builder.gep(self.pointers, [index(self.pointers_read)], source_etype=POINTER)
        self.pointers_read += 1
        return self.builder.load(place, align=8, typ=POINTER)


@dataclass(slots=True)
class Reached:
    """An operand at the beginning of a row: where it lies, or what it counts from there."""

    lying: Lying
    base: IrValue
    """The address of the row's first element; of what counts, the number there."""
    inner: IrValue
    """The stride along the row."""


def load_row(builder: Builder, code: LaneCode, reached: Reached) -> None:
    """Declare an operand that has one element for a whole row."""
    own = reached.lying
    if own.counts:
        code.hold(own.name, arithmetic_dtype(own.dtype), _counted(builder, reached, index(0)))
        return
    one = builder.load(reached.base, align=own.dtype.itemsize, typ=MEMORY[own.dtype])
    code.declare(own.name, own.dtype, splat(builder, one))


def _counted(builder: Builder, reached: Reached, place: IrValue) -> IrValue:
    """The numbers of `LANES` places from one on."""
    inner = index(0) if reached.lying.step == "one" else reached.inner
    assert reached.lying.dtype == int64
    return lane_numbers(builder, builder.add(reached.base, builder.mul(place, inner)), inner)


def load_lanes(
    builder: Builder,
    code: LaneCode,
    operands: Sequence[Reached],
    place: IrValue,
    remaining: IrValue,
) -> None:
    """Declare operands at `LANES` places from one on, of which `remaining` exist."""
    stored = [r for r in operands if not r.lying.counts and r.lying.step != "one"]

    def loads(mask: IrValue | None) -> list[IrValue]:
        found = []
        for each in stored:
            dtype = each.lying.dtype
            if each.lying.step == "apart":
                base = at(builder, each.base, builder.mul(place, each.inner), dtype)
                found.append(gather(builder, base, each.inner, dtype, mask))
            else:
                turned = each.lying.step == "turned"
                address = each.base if turned else at(builder, each.base, place, dtype)
                found.append(load(builder, address, dtype, None if turned else mask))
        return found

    values = whole_or_masked(builder, remaining, loads)
    for each, value in zip(stored, values, strict=True):
        code.declare(each.lying.name, each.lying.dtype, value)
    for each in operands:
        if each.lying.counts and each.lying.step != "one":
            code.hold(each.lying.name, int64, _counted(builder, each, place))


def store_lanes(
    builder: Builder,
    results: Sequence[tuple[Reached, IrValue]],
    place: IrValue,
    remaining: IrValue,
) -> None:
    """Write what lies so in memory to `LANES` places from one on, of which `remaining` exist."""

    def stores(mask: IrValue | None) -> list[IrValue]:
        for reached, value in results:
            dtype = reached.lying.dtype
            if reached.lying.step == "unit":
                store(builder, value, at(builder, reached.base, place, dtype), dtype, mask)
            else:
                base = at(builder, reached.base, builder.mul(place, reached.inner), dtype)
                scatter(builder, value, base, reached.inner, dtype, mask)
        return []

    whole_or_masked(builder, remaining, stores)


def whole_or_masked(
    builder: Builder, remaining: IrValue, access: Callable[[IrValue | None], list[IrValue]]
) -> list[IrValue]:
    """An access without a mask where all lanes exist, else with one."""
    return either(
        builder,
        builder.icmp_signed(">=", remaining, index(LANES)),
        lambda: access(None),
        lambda: access(first_lanes(builder, remaining)),
    )
