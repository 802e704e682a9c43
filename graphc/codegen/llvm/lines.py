"""Calls of row reductions, by rows or by columns; few long lines are split into parts.

The order of a sum follows from shapes and from the order of axes in memory alone. So it is the same
under every plan and on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphc.codegen.elementwise.program import Each
from graphc.codegen.lines.parts import Part, in_parts
from graphc.codegen.lines.program import Along, Lines
from graphc.codegen.llvm.columns import COLUMNS, ColumnWriter
from graphc.codegen.llvm.each import each_call
from graphc.codegen.llvm.kernel import NativeCall, NativeCalls, kernel_of
from graphc.codegen.llvm.lanes import LANES
from graphc.codegen.llvm.line_structure import (
    View,
    constant_bits,
    row_axes,
    seen,
    structure_of,
)
from graphc.codegen.llvm.pieces import rows_of_piece
from graphc.codegen.llvm.rows import BLOCK, RowWriter
from graphc.codegen.text.operands import Operand, collapse, row_major
from graphc.ir.types import TensorType, float32

ENOUGH_PIECES = 16
"""Minimum number of pieces at which whole lines keep a machine busy."""
PARTS = 32
"""Approximate number of pieces if lines are split."""
ROW_PART, COLUMN_PART = 16384, 128
"""Minimum number of elements per part of a line, by rows and by columns."""
SMALL = 65536
"""Number of elements below which splitting lines, which needs a second call, does not pay."""


def lines_calls(program: Along, first_scratch: int = 0) -> NativeCalls | None:
    """Return the calls of a line program and their scratch, numbered from `first_scratch` on.

    Returns None if NumPy must compute the program's functions.
    """
    lines = program.lines.in_memory_order()
    chunks = 1 if program.whole else _chunks(lines)
    scratch: list[TensorType] = []
    programs: list[Part | Each] = [Part(lines)]
    if chunks > 1:
        programs, scratch = in_parts(program.op, lines, chunks, first_scratch)
    calls = [
        each_call(each) if isinstance(each, Each) else _call(program.op, each.lines, each.chunks)
        for each in programs
    ]
    found = tuple(call for call in calls if call is not None)
    return NativeCalls(found, tuple(scratch)) if len(found) == len(calls) else None


def _by_rows(program: Lines) -> bool:
    """Return true if vectors are parts of lines. They are not if lines are kept along the innermost
    axis, or are numerous and shorter than vectors."""
    long = [axis for axis, extent in enumerate(program.shape) if extent > 1]
    last = [program.shape[axis] for axis in long if axis not in program.reduced][-1:]
    is_short = program.length < LANES and bool(last) and last[0] >= LANES
    return program.by_rows and not is_short


def _chunks(program: Lines) -> int:
    """Return the number of parts into which each line is split, 1 for whole lines."""
    if program.lines * program.length < SMALL:
        return 1
    if _by_rows(program):
        pieces, part = program.lines, ROW_PART
    else:
        *outer, inner = [program.shape[axis] for axis in program.kept]
        pieces, part = math.prod(outer) * -(-inner // COLUMNS), COLUMN_PART
    if pieces >= ENOUGH_PIECES or program.length < 2 * part:
        return 1
    return min(-(-program.length // part), -(-PARTS // pieces))


def _call(op: str, program: Lines, chunks: int) -> NativeCall | None:
    return (_rows_call if _by_rows(program) else _columns_call)(op, program, chunks)


def _on_parts(program: Lines, chunks: int) -> list[tuple[Operand, list[int], int]]:
    """Return (operand, strides along kept axes, stride between parts of a line) for all
    operands."""
    kept = program.kept
    spread = [n * chunks for n in row_major([program.shape[axis] for axis in kept])]
    found = [(o, [o.strides[axis] for axis in kept], 0) for o in program.inputs]
    for output in program.outputs:
        own = [output.strides[axis] for axis in kept]
        found.append((output, spread, 1) if chunks > 1 else (output, own, 0))
    return found


def _collapsed(
    shape: Sequence[int], strides: Sequence[Sequence[int]]
) -> tuple[list[int], list[list[int]]]:
    """Merge axes into as few as possible for several lists of strides; return extents and new
    strides."""
    stand_ins = [Operand("", float32, tuple(own)) for own in strides]
    extents, found = collapse(tuple(shape), stand_ins)
    return list(extents), [list(o.strides) for o in found]


def _rows_call(op: str, program: Lines, chunks: int) -> NativeCall | None:
    long = [axis for axis, extent in enumerate(program.shape) if extent > 1]
    count = row_axes(program)
    row = [axis for axis in long[-count:] if axis in program.reduced]
    outside = [axis for axis in program.reduced if axis not in row]
    operands = _on_parts(program, chunks)
    kept, kept_strides = _collapsed(
        [program.shape[axis] for axis in program.kept], [own for _, own, _ in operands]
    )
    runs, run_strides = _collapsed(
        [program.shape[axis] for axis in outside],
        [[o.strides[axis] for axis in outside] for o, _, _ in operands],
    )
    views = [
        seen(o, [*own, part], run, [(program.shape[a], o.strides[a]) for a in row])
        for (o, _, part), own, run in zip(operands, kept_strides, run_strides, strict=True)
    ]
    length, run_count = math.prod(program.shape[axis] for axis in row), math.prod(runs)
    lines, block = program.lines * chunks, rows_of_piece(program.length // chunks)
    shares = [0, run_count, 0, length]
    if chunks > 1 and run_count > 1:
        shares[:2] = [-(-run_count // chunks)] * 2
    elif chunks > 1:
        shares[2:] = [-(-length // (chunks * BLOCK)) * BLOCK] * 2
    numbers = [*kept, chunks, *runs, length, lines, block, *shares]
    pieces = -(-lines // block)
    return _native(op, program, RowWriter, len(kept) + 1, len(runs), views, numbers, pieces)


def _columns_call(op: str, program: Lines, chunks: int) -> NativeCall | None:
    operands = _on_parts(program, chunks)
    kept, kept_strides = _collapsed(
        [program.shape[axis] for axis in program.kept], [own for _, own, _ in operands]
    )
    runs, run_strides = _collapsed(
        [program.shape[axis] for axis in program.reduced],
        [[o.strides[axis] for axis in program.reduced] for o, _, _ in operands],
    )
    views = [
        seen(o, [part, *own], run, [(kept[-1], own[-1])])
        for (o, _, part), own, run in zip(operands, kept_strides, run_strides, strict=True)
    ]
    strip = min(COLUMNS, kept[-1])
    strips = -(-kept[-1] // strip)
    share = -(-program.length // chunks)
    step = 0 if chunks == 1 else share
    numbers = [chunks, *kept, *runs, strip, strips, program.length, step, share]
    pieces = chunks * math.prod(kept[:-1]) * strips
    return _native(op, program, ColumnWriter, len(kept) + 1, len(runs), views, numbers, pieces)


def _native(
    op: str,
    program: Lines,
    writer: type[RowWriter] | type[ColumnWriter],
    kept: int,
    runs: int,
    views: Sequence[View],
    numbers: list[int],
    pieces: int,
) -> NativeCall | None:
    operands = (*program.inputs, *program.outputs)
    is_by_rows = writer is RowWriter
    per_row = [o.name for o in operands if not any(o.strides[axis] for axis in program.reduced)]
    structure = structure_of(program, kept, runs, [view.lying for view in views], per_row)
    if structure is None:
        return None
    numbers = [*numbers, *(n for view in views for n in view.numbers), *constant_bits(program)]
    stages = sum(bool(stage.combined) for stage in structure.stages)
    return NativeCall(
        kernel_of(op, (is_by_rows, structure), lambda builder: writer(builder, structure).write()),
        tuple(o.buffer for o in operands if o.buffer is not None),
        tuple(numbers),
        pieces,
        math.prod(program.shape) * (stages + bool(structure.per_element)),
    )
