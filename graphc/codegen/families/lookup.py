"""Rows of a table by number (gather), and the table's gradient.

In the gradient, one warp per row of the table searches the numbers for its own. So rows of dy are
added in the order of their positions on any device, without atomics and without sorting. If there
are many numbers, a first kernel marks the rows that each part of them may contain. Marks are the
last bits of the numbers, as in a Bloom filter with one hash function. Warps search only parts whose
bit is set.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from graphc.codegen.elementwise.ops import copied
from graphc.codegen.node_calls import Launch, NodeCalls, Scratch
from graphc.codegen.rules import kernels_of
from graphc.codegen.text.access import Access, indented, parameters
from graphc.codegen.text.grid import BLOCK, WARP, grid_kernel, over_grid
from graphc.codegen.text.kernel import ENTRY, named
from graphc.codegen.text.operands import (
    VECTOR_BYTES,
    Operand,
    Places,
    collapse,
    decompose,
    offset,
    operand,
    packs,
    widest_index,
)
from graphc.codegen.text.scalar import C_TYPES, arithmetic_dtype, literal
from graphc.ir.graph import Node
from graphc.ir.types import DType, TensorType, int32

LANE_COLUMNS = 8
"""Number of columns of one row that a lane sums at a time."""

PART = BLOCK
"""Number of lookups per part, whose rows share one set of marks."""

WORDS = BLOCK
"""Number of 32-bit words of marks per part. A part sets at most 256 of its 8,192 marks. So at most
one row in 32 is searched for in vain.
"""

FEW_PARTS = 4
"""Maximum number of parts that are searched without marks, because marks need another launch."""


@kernels_of("gather")
def _gather(node: Node, places: Places) -> NodeCalls:
    """Return the calls that copy rows of a contiguous table to a contiguous y. A row number out of
    range reads the nearest row.
    """
    table, numbers = node.inputs
    y, rows = node.output, table.shape[0]
    columns = math.prod(table.shape[1:])
    lookups = numbers.type.elements
    source = Operand("table", table.type.dtype, (columns, 1), table, places[table].address)
    target = Operand("y", y.type.dtype, (columns, 1), y, places[y].address)
    extents, (index,) = collapse(
        numbers.shape, [operand("numbers", numbers, places[numbers], numbers.shape)]
    )
    width = VECTOR_BYTES // source.dtype.itemsize
    while width > 1 and (columns % width or not (packs(source, width) and packs(target, width))):
        width //= 2
    split, indices = decompose("lookup", extents, "i")
    reading = Access(source, f"Index(row) * {columns}u + column", width)
    writing = Access(target, f"lookup * {columns}u + column", width)
    lane = f"narrow({reading.read()}, {writing.target()});"
    body = [
        f"const Index lookup = item / {columns // width}u;",
        f"const Index column = item % {columns // width}u * {width}u;",
        *split,
        f"const long long number = numbers[{offset(indices, index.strides)}];",
        f"const long long row = number < 0 ? 0 : number < {rows} ? number : {rows - 1};",
        reading.load(),
        writing.open(),
        f"#pragma unroll\nfor (int lane = 0; lane < {width}; ++lane) {lane}",
        *writing.close(),
    ]
    packed = lookups * columns // width
    spans = [((rows, columns), source), ((lookups, columns), target), (extents, index)]
    index_kind = widest_index(spans)
    given = parameters([source, index], [target])
    kernel = grid_kernel("gather", packed, index_kind, given, body)
    return NodeCalls((over_grid(kernel, (table, numbers, y), packed),))


@kernels_of("gather_gradient")
def _gather_gradient(node: Node, places: Places) -> NodeCalls:
    """Return the calls of gather's gradient, which add each row of dy to the table row of the same
    lookup. All tensors are contiguous. A running sum is in the output's memory, or is copied there
    first.
    """
    dy, numbers, *sums = node.inputs
    dtable = node.output
    rows, columns = dtable.shape[0], math.prod(dtable.shape[1:])
    summed = row_updates(
        "gather_gradient",
        1,
        (rows, columns),
        numbers.type.elements,
        Operand("numbers", numbers.type.dtype, (1,), numbers),
        Operand("dy", dy.type.dtype, (columns, 1), dy),
        Operand("dtable", dtable.type.dtype, (columns, 1), dtable),
        "add(total[t], update)",
        arithmetic_dtype(dy.type.dtype),
        begins=bool(sums),
    )
    moved = [value for value in sums if places[value] != places[dtable]]
    calls = (*(copied(value, dtable, places) for value in moved), *summed.calls)
    return NodeCalls(calls, summed.scratch)


def row_updates(
    op: str,
    batch: int,
    shape: tuple[int, int],
    lookups: int,
    numbers: Operand,
    updates: Operand,
    target: Operand,
    step: str,
    held: DType,
    begins: bool = True,
    scratch: int = 0,
) -> NodeCalls:
    """Return launches that apply to each row of `target` the updates whose number is that of the
    row.

    All tensors are contiguous: rows (batch, rows, columns), updates (batch, lookups, columns), and
    numbers (batch, lookups), from 0 in each entry of the batch. A warp takes some columns of one
    row. It compares 32 numbers at a time with its row, one per lane. The lanes vote, and `step`,
    C++ over `total[t]` and `update`, is applied to the matching updates in order. If `begins` is
    true, `total` starts with the contents of the row, otherwise with 0. Marks are scratch tensor
    number `scratch`.
    """
    rows, columns = shape
    tiles = -(-columns // (WARP * LANE_COLUMNS))
    count = batch * rows * tiles
    here = f"{target.name}[number * {columns}u + column]"
    start = f"widen({here})" if begins else literal(0.0, held)
    every = f"#pragma unroll\nfor (int t = 0; t < {LANE_COLUMNS}; ++t)"
    column = f"const Index column = first + t * {WARP}u;"
    inside = f"if (exists && column < {columns}u)"
    parts = -(-lookups // PART)
    has_marks = parts > FEW_PARTS
    marks = Operand("marks", int32, (parts, 1), Scratch(scratch))
    read = f"const {C_TYPES[held]} update = widen({updates.name}[from + column]);"
    body = [
        *_own_row(count, tiles, rows, lookups),
        f"{C_TYPES[held]} total[{LANE_COLUMNS}] = {{}};",
        f"{every} {{\n    {column}\n    {inside} total[t] = {start};\n}}",
        *_over_numbers(rows, lookups, has_marks),
        f"    const bool mine = exists && base + lane < {lookups}u"
        f" && {numbers.name}[entry + base + lane] == row;",
        "    unsigned hits = __ballot_sync(0xffffffffu, mine);",
        "    for (; hits; hits &= hits - 1) {",
        f"        const Index from = (entry + base + __ffs(hits) - 1) * {columns}u;",
        indented([f"{every} {{\n    {column}"], 2),
        f"            {inside} {{\n                {read}\n"
        f"                total[t] = {step};\n            }}",
        "        }",
        "    }",
        *["}"] * (2 if has_marks else 1),
        f"{every} {{\n    {column}\n    {inside} narrow(total[t], {here});\n}}",
    ]
    spans = [((batch * lookups, columns), updates), ((batch * rows, columns), target)]
    index = widest_index([*spans, ((count, WARP), Operand("", held, (WARP, 1)))])
    sources = [updates, numbers, marks] if has_marks else [updates, numbers]
    launch = _launch(op, index, body, sources, target, -(-count * WARP // BLOCK))
    if not has_marks:
        return NodeCalls((launch,))
    marked = TensorType((batch * WORDS * parts,), int32)
    return NodeCalls((_marking(op, batch, lookups, numbers, marks), launch), (marked,))


def _own_row(count: int, tiles: int, rows: int, lookups: int) -> list[str]:
    """Return statements for the row and the columns of a lane, and for the start of its batch
    entry's numbers."""
    tile = WARP * LANE_COLUMNS
    return [
        "const Index lane = threadIdx.x % WARP;",
        "const Index warp = (Index(blockIdx.x) * blockDim.x + threadIdx.x) / WARP;",
        f"const bool exists = warp < {count}u;",
        f"const Index number = warp / {tiles}u, first = warp % {tiles}u * {tile}u + lane;",
        f"const Index row = number % {rows}u, entry = number / {rows}u * {lookups}u;",
    ]


def _launch(
    name: str, index: str, body: Sequence[str], sources: list[Operand], target: Operand, grid: int
) -> Launch:
    text = (
        f'extern "C" __global__ void {ENTRY}({parameters(sources, [target])}) {{\n'
        f"    using Index = {index};\n{indented(body, 1)}\n}}\n"
    )
    buffers = tuple(each.buffer for each in (*sources, target) if each.buffer is not None)
    return Launch(named(name, text), buffers, grid, BLOCK)


def _over_numbers(rows: int, lookups: int, has_marks: bool) -> list[str]:
    """Return the heads of the loops in which a warp finds its row among the numbers of a batch
    entry."""
    if not has_marks:
        return [f"for (Index base = 0; base < {lookups}u; base += WARP) {{"]
    parts = -(-lookups // PART)
    return [
        f"const Index word = number / {rows}u * {WORDS}u + (unsigned(row) >> 5) % {WORDS}u;",
        f"for (Index part = 0; part < {parts}u; part += WARP) {{",
        f"const bool may = exists && part + lane < {parts}u",
        f"    && unsigned(marks[word * {parts}u + part + lane]) >> (row & 31u) & 1u;",
        "for (unsigned some = __ballot_sync(0xffffffffu, may); some; some &= some - 1)",
        f"for (Index base = (part + __ffs(some) - 1) * {PART}u, end = base + {PART}u;",
        f"     base < end && base < {lookups}u; base += WARP) {{",
    ]


def _marking(op: str, batch: int, lookups: int, numbers: Operand, marks: Operand) -> Launch:
    """Return a launch that marks the rows that each part of the numbers may contain.

    A block reads a part; each thread then writes one word of marks, set by the numbers that map to
    the word.
    """
    parts = -(-lookups // PART)
    body = [
        f"__shared__ unsigned lasts[{PART}];",
        f"const Index part = blockIdx.x % {parts}u, entry = blockIdx.x / {parts}u;",
        f"const Index lookup = part * {PART}u + threadIdx.x;",
        f"const bool exists = lookup < {lookups}u;",
        f"const long long number = exists ? {numbers.name}[entry * {lookups}u + lookup] : -1;",
        f"lasts[threadIdx.x] = number < 0 ? ~0u : unsigned(number) % {32 * WORDS}u;",
        "__syncthreads();",
        "unsigned bits = 0;",
        f"for (unsigned i = 0; i < {PART}u; ++i)",
        "    if (lasts[i] >> 5 == threadIdx.x) bits |= 1u << (lasts[i] & 31u);",
        f"marks[(entry * {WORDS}u + threadIdx.x) * {parts}u + part] = bits;",
    ]
    index = widest_index([((batch * WORDS, parts), marks), ((batch * lookups,), numbers)])
    return _launch(f"{op}_marks", index, body, [numbers], marks, batch * parts)
