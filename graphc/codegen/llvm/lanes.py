"""Vectors of `LANES` elements on every machine; LLVM splits them as needed.

Every lane computes an element by the same operations. The last, partial vector of a row has a mask.
So an element's result does not depend on its position.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir

from graphc.codegen.llvm.kernel import INDEX, POINTER
from graphc.codegen.text.scalar import arithmetic_dtype
from graphc.ir.types import (
    DType,
    bfloat16,
    bool_,
    float16,
    float32,
    float64,
    int32,
    int64,
    uint8,
)

LANES = 16

Builder = Any
IrValue = Any
"""The type of values of llvmlite's builder, which has no type annotations."""

BIT, BYTE, SHORT, WORD = ir.IntType(1), ir.IntType(8), ir.IntType(16), ir.IntType(32)
FLOAT, DOUBLE, HALF = ir.FloatType(), ir.DoubleType(), ir.HalfType()

MEMORY: dict[DType, Any] = {
    float32: FLOAT, float64: DOUBLE, float16: HALF, bfloat16: SHORT, int32: WORD, int64: INDEX,
    uint8: BYTE, bool_: BYTE,
}  # fmt: skip
"""The LLVM type of an element in memory, by dtype."""

HELD: dict[DType, Any] = {
    float32: FLOAT, float64: DOUBLE, int32: WORD, int64: INDEX, bool_: BIT,
}  # fmt: skip
"""The LLVM type of a lane of a vector, by arithmetic dtype."""

_MANGLED = {"float": "f32", "double": "f64", "half": "f16"}


def vector(element: Any) -> Any:
    """Return the type of a vector of `LANES` elements."""
    return ir.VectorType(element, LANES)


def held(dtype: DType) -> Any:
    """Return the type of a vector that holds values of a dtype in its arithmetic dtype."""
    return vector(HELD[arithmetic_dtype(dtype)])


def index(number: int) -> IrValue:
    """Return a 64-bit constant."""
    return ir.Constant(INDEX, number)


def constant(type: Any, number: float) -> IrValue:
    """Return a vector with the number in every lane, rounded to its elements' type."""
    element = type.element
    if element == FLOAT:
        with np.errstate(over="ignore"):
            number = float(np.float32(number))
    given = float(number) if element in (FLOAT, DOUBLE, HALF) else int(number)
    return ir.Constant(type, [given] * type.count)


def intrinsic(builder: Builder, name: str, *operands: IrValue) -> IrValue:
    """Call LLVM's function of that name for vectors of these operands' type."""
    type = operands[0].type
    mangled = _MANGLED.get(str(type.element), f"i{getattr(type.element, 'width', 0)}")
    full = f"llvm.{name}.v{type.count}{mangled}"
    return builder.call(declared(builder, full, type, [o.type for o in operands]), operands)


def declared(builder: Builder, name: str, result: Any, operands: Sequence[Any]) -> IrValue:
    """Return an external function of the builder's module, declared on first use."""
    known = builder.module.globals.get(name)
    return known or ir.Function(builder.module, ir.FunctionType(result, operands), name)


def splat(builder: Builder, scalar: IrValue) -> IrValue:
    """Return a vector with a scalar in every lane."""
    type = vector(scalar.type)
    one = builder.insert_element(ir.Constant(type, ir.Undefined), scalar, ir.Constant(WORD, 0))
    return builder.shuffle_vector(
        one, ir.Constant(type, ir.Undefined), ir.Constant(ir.VectorType(WORD, LANES), [0] * LANES)
    )


def lane_numbers(builder: Builder, first: IrValue, step: IrValue) -> IrValue:
    """Return first, first + step, ..., as 64-bit integers."""
    lanes = ir.Constant(vector(INDEX), list(range(LANES)))
    return builder.add(splat(builder, first), builder.mul(lanes, splat(builder, step)))


def first_lanes(builder: Builder, count: IrValue) -> IrValue:
    """Return a mask of the first `count` lanes."""
    few = builder.select(builder.icmp_signed("<", count, index(LANES)), count, index(LANES))
    number = splat(builder, builder.trunc(few, WORD))
    return builder.icmp_signed("<", ir.Constant(vector(WORD), list(range(LANES))), number)


def widen(builder: Builder, stored: IrValue, dtype: DType) -> IrValue:
    """Convert values loaded from memory to the arithmetic dtype of their dtype."""
    to = held(dtype) if isinstance(stored.type, ir.VectorType) else HELD[arithmetic_dtype(dtype)]
    if dtype == float16:
        return builder.fpext(stored, to)
    if dtype == bfloat16:
        bits = vector(WORD) if isinstance(stored.type, ir.VectorType) else WORD
        sixteen = ir.Constant(bits, [16] * LANES) if bits != WORD else ir.Constant(WORD, 16)
        return builder.bitcast(builder.shl(builder.zext(stored, bits), sixteen), to)
    if dtype == uint8:
        return builder.zext(stored, to)
    if dtype == bool_:
        return builder.icmp_unsigned("!=", stored, ir.Constant(stored.type, None))
    return stored


def narrow(builder: Builder, value: IrValue, source: DType, dtype: DType) -> IrValue:
    """Convert values of dtype `source` to their dtype in memory.

    They are rounded once, except that float64 is converted to 16 bits by way of float32.
    """
    value = converted(builder, value, source, arithmetic_dtype(dtype))
    to = vector(MEMORY[dtype])
    if dtype == float16:
        return builder.fptrunc(value, to)
    if dtype == bfloat16:
        return _rounded_to_bfloat16(builder, value)
    if dtype == uint8:
        return builder.trunc(value, to)
    return builder.zext(value, to) if dtype == bool_ else value


def _rounded_to_bfloat16(builder: Builder, value: IrValue) -> IrValue:
    """Round float32 to bfloat16, to nearest even; return the upper 16 bits. NaN stays NaN."""
    words = vector(WORD)
    bits = builder.bitcast(value, words)
    sixteen = constant(words, 16)
    odd = builder.and_(builder.lshr(bits, sixteen), constant(words, 1))
    rounded = builder.add(bits, builder.add(odd, constant(words, 0x7FFF)))
    is_nan = builder.fcmp_unordered("uno", value, value)
    quiet = builder.or_(bits, constant(words, 0x400000))
    chosen = builder.select(is_nan, quiet, rounded)
    return builder.trunc(builder.lshr(chosen, sixteen), vector(SHORT))


def converted(builder: Builder, value: IrValue, source: DType, to: DType) -> IrValue:
    """Convert values between arithmetic dtypes by the rules of C."""
    if source == to:
        return value
    type = vector(HELD[to])
    if to == bool_:
        zero = constant(value.type, 0)
        if source.kind == "float":
            return builder.fcmp_unordered("!=", value, zero)
        return builder.icmp_signed("!=", value, zero)
    if source == bool_:
        return builder.uitofp(value, type) if to.kind == "float" else builder.zext(value, type)
    match source.kind, to.kind:
        case "float", "float":
            wider = to.itemsize > source.itemsize
            return builder.fpext(value, type) if wider else builder.fptrunc(value, type)
        case "float", _:
            return builder.fptosi(value, type)
        case _, "float":
            return builder.sitofp(value, type)
    wider = to.itemsize > source.itemsize
    return builder.sext(value, type) if wider else builder.trunc(value, type)


def at(builder: Builder, base: IrValue, offset: IrValue, dtype: DType) -> IrValue:
    """Return the address of the element at `offset` elements after `base`."""
    return builder.gep(base, [offset], source_etype=MEMORY[dtype])


def load(builder: Builder, address: IrValue, dtype: DType, mask: IrValue | None = None) -> IrValue:
    """Load `LANES` contiguous elements; lanes outside the mask are 0."""
    type, size = vector(MEMORY[dtype]), dtype.itemsize
    if mask is None:
        return builder.load(address, align=size, typ=type)
    name = f"llvm.masked.load.v{LANES}{_suffix(dtype)}.p0"
    function = declared(builder, name, type, [POINTER, WORD, vector(BIT), type])
    given = [address, ir.Constant(WORD, size), mask, ir.Constant(type, None)]
    return builder.call(function, given)


def store(
    builder: Builder, stored: IrValue, address: IrValue, dtype: DType, mask: IrValue | None = None
) -> None:
    """Store `LANES` contiguous elements, or those in the mask."""
    type, size = vector(MEMORY[dtype]), dtype.itemsize
    if mask is None:
        builder.store(stored, address, align=size)
        return
    name = f"llvm.masked.store.v{LANES}{_suffix(dtype)}.p0"
    function = declared(builder, name, ir.VoidType(), [type, POINTER, WORD, vector(BIT)])
    builder.call(function, [stored, address, ir.Constant(WORD, size), mask])


def prefetch(builder: Builder, address: IrValue) -> None:
    """Prefetch the cache line at an address, which may be invalid."""
    function = declared(builder, "llvm.prefetch.p0", ir.VoidType(), [POINTER, WORD, WORD, WORD])
    to_read, keep, of_data = (ir.Constant(WORD, number) for number in (0, 3, 1))
    builder.call(function, [address, to_read, keep, of_data])


def load_integer(builder: Builder, address: IrValue, place: IrValue, dtype: DType) -> IrValue:
    """Load an integer from memory, extended to 64 bits."""
    found = builder.load(
        at(builder, address, place, dtype), align=dtype.itemsize, typ=MEMORY[dtype]
    )
    if dtype == int64:
        return found
    return builder.zext(found, INDEX) if dtype == uint8 else builder.sext(found, INDEX)


def gather(
    builder: Builder, base: IrValue, step: IrValue | None, dtype: DType, mask: IrValue | None = None
) -> IrValue:
    """Load `LANES` elements that are `step` elements apart, or contiguous if `step` is None. Lanes
    outside the mask are 0."""
    if step is None:
        return load(builder, base, dtype, mask)
    return gather_at(builder, base, lane_numbers(builder, index(0), step), dtype, mask)


def gather_at(
    builder: Builder, base: IrValue, offsets: IrValue, dtype: DType, mask: IrValue | None = None
) -> IrValue:
    """Load `LANES` elements at these offsets; lanes outside the mask are 0."""
    type, pointers = vector(MEMORY[dtype]), vector(POINTER)
    name = f"llvm.masked.gather.v{LANES}{_suffix(dtype)}.v{LANES}p0"
    function = declared(builder, name, type, [pointers, WORD, vector(BIT), type])
    places, chosen = _scattered(builder, base, offsets, dtype, mask)
    given = [places, ir.Constant(WORD, dtype.itemsize), chosen, ir.Constant(type, None)]
    return builder.call(function, given)


def scatter(
    builder: Builder,
    stored: IrValue,
    base: IrValue,
    step: IrValue | None,
    dtype: DType,
    mask: IrValue | None = None,
) -> None:
    """Store `LANES` elements, or those in the mask, `step` elements apart, or contiguous if `step`
    is None."""
    if step is None:
        store(builder, stored, base, dtype, mask)
    else:
        scatter_at(builder, stored, base, lane_numbers(builder, index(0), step), dtype, mask)


def scatter_at(
    builder: Builder,
    stored: IrValue,
    base: IrValue,
    offsets: IrValue,
    dtype: DType,
    mask: IrValue | None = None,
) -> None:
    """Store `LANES` elements at these offsets, or those in the mask."""
    type, pointers = vector(MEMORY[dtype]), vector(POINTER)
    name = f"llvm.masked.scatter.v{LANES}{_suffix(dtype)}.v{LANES}p0"
    function = declared(builder, name, ir.VoidType(), [type, pointers, WORD, vector(BIT)])
    places, chosen = _scattered(builder, base, offsets, dtype, mask)
    builder.call(function, [stored, places, ir.Constant(WORD, dtype.itemsize), chosen])


def _scattered(
    builder: Builder, base: IrValue, offsets: IrValue, dtype: DType, mask: IrValue | None
) -> tuple[IrValue, IrValue]:
    """Return the addresses of elements at these offsets, and the mask; without a mask, one of all
    lanes."""
    places = builder.gep(base, [offsets], source_etype=MEMORY[dtype])
    places.type = vector(POINTER)  # llvmlite assumes one address
    return places, ir.Constant(vector(BIT), [1] * LANES) if mask is None else mask


def _suffix(dtype: DType) -> str:
    type = MEMORY[dtype]
    return _MANGLED.get(str(type)) or f"i{type.width}"


def loop(
    builder: Builder,
    first: IrValue,
    last: IrValue,
    step: int,
    carried: Sequence[IrValue],
    body: Callable[[IrValue, list[IrValue]], Sequence[IrValue]],
) -> list[IrValue]:
    """Write a loop over first, first + step, ... below last.

    `body` gets the index and the carried values, and returns the next carried values. The loop
    returns the last of them.
    """
    before = builder.block
    head = builder.append_basic_block("loop")
    inside = builder.append_basic_block("body")
    after = builder.append_basic_block("done")
    builder.branch(head)
    builder.position_at_end(head)
    number = builder.phi(INDEX)
    number.add_incoming(first, before)
    held_on = [builder.phi(value.type) for value in carried]
    for phi, value in zip(held_on, carried, strict=True):
        phi.add_incoming(value, before)
    builder.cbranch(builder.icmp_signed("<", number, last), inside, after)
    builder.position_at_end(inside)
    results = body(number, list(held_on))
    end = builder.block
    number.add_incoming(builder.add(number, index(step), flags=["nsw"]), end)
    for phi, value in zip(held_on, results, strict=True):
        phi.add_incoming(value, end)
    builder.branch(head)
    builder.position_at_end(after)
    return held_on


def either(
    builder: Builder,
    condition: IrValue,
    then: Callable[[], Sequence[IrValue]],
    otherwise: Callable[[], Sequence[IrValue]],
) -> list[IrValue]:
    """Write code for both branches of a condition, and return the results of the branch that is
    taken."""
    yes, no = builder.append_basic_block("yes"), builder.append_basic_block("no")
    after = builder.append_basic_block("after")
    builder.cbranch(condition, yes, no)
    ends = []
    for block, branch in ((yes, then), (no, otherwise)):
        builder.position_at_end(block)
        results = branch()
        ends.append((results, builder.block))
        builder.branch(after)
    builder.position_at_end(after)
    phis = [builder.phi(value.type) for value in ends[0][0]]
    for results, block in ends:
        for phi, value in zip(phis, results, strict=True):
            phi.add_incoming(value, block)
    return phis


def stack(builder: Builder, type: Any, count: int = 1) -> IrValue:
    """Allocate memory on the function's stack, aligned for vectors."""
    with builder.goto_entry_block():
        scratch = builder.alloca(type, size=count)
        scratch.align = 64
    scratch.type = POINTER  # opaque, like all pointers
    return scratch
