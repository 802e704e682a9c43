"""Square tiles that are transposed in registers and stored on the stack."""

from __future__ import annotations

from llvmlite import ir

from graphc.codegen.llvm.elements import Reached, whole_or_masked
from graphc.codegen.llvm.lanes import LANES, WORD, Builder, IrValue, at, index, load, store
from graphc.codegen.llvm.places import least


def fill_tile(
    builder: Builder,
    scratch: IrValue,
    source: Reached,
    column: IrValue,
    last: IrValue,
    tall: IrValue,
) -> None:
    """Store `LANES` columns of `tall` rows of a transposed operand in `scratch`, row after row.

    Columns beyond the last one are filled with its elements, so nothing is read out of bounds.
    """
    dtype = source.lying.dtype
    columns = [least(builder, builder.add(column, index(lane)), last) for lane in range(LANES)]
    places = [at(builder, source.base, builder.mul(each, source.inner), dtype) for each in columns]
    read = whole_or_masked(
        builder, tall, lambda mask: [load(builder, place, dtype, mask) for place in places]
    )
    for row, values in enumerate(transposed(builder, read)):
        store(builder, values, at(builder, scratch, index(row * LANES), dtype), dtype)


def transposed(builder: Builder, rows: list[IrValue]) -> list[IrValue]:
    """Return the columns of a square matrix.

    Each round interleaves rows that are half the matrix apart, which moves one bit of the row index
    to the column index.
    """
    half = LANES // 2
    for _ in range(LANES.bit_length() - 1):
        rows = [
            interleaved(builder, rows[row // 2], rows[row // 2 + half], row % 2 * half)
            for row in range(LANES)
        ]
    return rows


def interleaved(builder: Builder, a: IrValue, b: IrValue, first: int) -> IrValue:
    """Interleave the elements of a and b, from element `first` of both on."""
    chosen = [first + lane // 2 + lane % 2 * LANES for lane in range(LANES)]
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(WORD, LANES), chosen))
