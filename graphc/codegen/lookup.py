"""Rows of a table by number, and the table's gradient.

The gradient gives each row of the table to a warp, which looks through all numbers for its own.
So rows of dy are added in the order of their positions, whatever the device does, without atomics
and without sorting.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from graphc.codegen.access import Access, indented, parameters
from graphc.codegen.calls import Launch, NodeCalls
from graphc.codegen.elementwise import BLOCK, GRID_LIMIT
from graphc.codegen.elementwise_ops import Places, Rule, copied
from graphc.codegen.kernel import ENTRY, named
from graphc.codegen.layout import (
    ALIGNMENT,
    Operand,
    collapse,
    decompose,
    offset,
    operand,
    packs,
    widest_index,
)
from graphc.codegen.scalar import C_TYPES, arithmetic_dtype, literal
from graphc.ir.graph import Node

WARP = 32
LANE_COLUMNS = 8
"""Columns of one row that a lane sums at a time."""


def _gather(node: Node, places: Places) -> NodeCalls:
    """y lies in one piece, as does the table. Numbers out of range read the nearest row."""
    table, numbers = node.inputs
    y, rows = node.output, table.shape[0]
    columns = math.prod(table.shape[1:])
    lookups = numbers.type.elements
    source = Operand("table", table.type.dtype, (columns, 1), table, places[table].address)
    target = Operand("y", y.type.dtype, (columns, 1), y, places[y].address)
    extents, (index,) = collapse(
        numbers.shape, [operand("numbers", numbers, places[numbers], numbers.shape)]
    )
    width = ALIGNMENT // source.dtype.itemsize
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
    index_kind = widest_index([((rows, columns), source), ((lookups, columns), target)])
    text = (
        f'extern "C" __global__ void {ENTRY}({parameters([source, index], [target])}) {{\n'
        f"    using Index = {index_kind};\n"
        "    const Index threads = Index(gridDim.x) * blockDim.x;\n"
        "    Index item = Index(blockIdx.x) * blockDim.x + threadIdx.x;\n"
        f"    for (; item < {packed}u; item += threads) {{\n{indented(body, 2)}\n    }}\n}}\n"
    )
    grid = min(GRID_LIMIT, -(-packed // BLOCK))
    return NodeCalls((Launch(named("gather", text), (table, numbers, y), grid, BLOCK),))


def _gather_gradient(node: Node, places: Places) -> NodeCalls:
    """A running sum is where the output is, or is copied there first. The rest is in one piece."""
    dy, numbers, *sums = node.inputs
    dtable = node.output
    rows, columns = dtable.shape[0], math.prod(dtable.shape[1:])
    lookups, held = numbers.type.elements, arithmetic_dtype(dy.type.dtype)
    tile = WARP * LANE_COLUMNS
    tiles = -(-columns // tile)
    inputs = [Operand("dy", dy.type.dtype, (columns, 1), dy)]
    inputs.append(Operand("numbers", numbers.type.dtype, (1,), numbers))
    target = Operand("dtable", dtable.type.dtype, (columns, 1), dtable)
    column = f"const Index column = first + t * {WARP}u;"
    inside = f"if (exists && column < {columns}u)"
    here = f"row * {columns}u + column"
    start = f"widen(dtable[{here}])" if sums else literal(0.0, held)
    every = f"#pragma unroll\nfor (int t = 0; t < {LANE_COLUMNS}; ++t)"
    body = [
        "const Index lane = threadIdx.x % WARP;",
        "const Index warp = (Index(blockIdx.x) * blockDim.x + threadIdx.x) / WARP;",
        f"const bool exists = warp < {rows * tiles}u;",
        f"const Index row = warp / {tiles}u, first = warp % {tiles}u * {tile}u + lane;",
        f"{C_TYPES[held]} total[{LANE_COLUMNS}] = {{}};",
        f"{every} {{\n    {column}\n    {inside} total[t] = {start};\n}}",
        f"for (Index base = 0; base < {lookups}u; base += WARP) {{",
        f"    const bool mine = base + lane < {lookups}u && numbers[base + lane] == row;",
        "    unsigned hits = __ballot_sync(0xffffffffu, mine);",
        "    for (; hits; hits &= hits - 1) {",
        f"        const Index from = (base + __ffs(hits) - 1) * {columns}u;",
        indented([f"{every} {{\n    {column}"], 2),
        f"            {inside} total[t] += widen(dy[from + column]);",
        "        }",
        "    }",
        "}",
        f"{every} {{\n    {column}\n    {inside} narrow(total[t], dtable[{here}]);\n}}",
    ]
    index_kind = widest_index([((lookups, columns), inputs[0]), ((rows, columns), target)])
    text = (
        f'extern "C" __global__ void {ENTRY}({parameters(inputs, [target])}) {{\n'
        f"    using Index = {index_kind};\n"
        f"{indented(body, 1)}\n}}\n"
    )
    grid = -(-rows * tiles * WARP // BLOCK)
    launch = Launch(named("gather_gradient", text), (dy, numbers, dtable), grid, BLOCK)
    moved = [value for value in sums if places[value] != places[dtable]]
    return NodeCalls((*(copied(value, dtable, places) for value in moved), launch))


RULES: Mapping[str, Rule] = {"gather": _gather, "gather_gradient": _gather_gradient}
"""Ops that look up rows."""
