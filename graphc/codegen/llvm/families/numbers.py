"""Floats among a kernel's numbers, and single numbers in memory."""

from __future__ import annotations

import struct

from graphc.codegen.llvm.elements import NumberReader
from graphc.codegen.llvm.kernel import INDEX
from graphc.codegen.llvm.lanes import DOUBLE, MEMORY, Builder, IrValue, at
from graphc.ir.types import DType, int64, uint8


def bits_of(number: float) -> int:
    """Return the bits of a float64 as a 64-bit integer."""
    (found,) = struct.unpack("<q", struct.pack("<d", number))
    return int(found)


def read_float(builder: Builder, given: NumberReader) -> IrValue:
    """Read the float64 whose bits are the next number."""
    return builder.bitcast(given.number(), DOUBLE)


def load_integer(builder: Builder, address: IrValue, place: IrValue, dtype: DType) -> IrValue:
    """Load an integer from memory, extended to 64 bits."""
    found = builder.load(
        at(builder, address, place, dtype), align=dtype.itemsize, typ=MEMORY[dtype]
    )
    if dtype == int64:
        return found
    return builder.zext(found, INDEX) if dtype == uint8 else builder.sext(found, INDEX)
