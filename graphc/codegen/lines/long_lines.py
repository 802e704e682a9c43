"""Launches of row reductions; few long lines are split into parts (two-stage reduction).

The split depends on the shape alone. So the order of a sum is the same on every device.
"""

from __future__ import annotations

from graphc.codegen.elementwise.kernel import elementwise
from graphc.codegen.lines.kernel import line_kernel
from graphc.codegen.lines.parts import Part, in_parts
from graphc.codegen.lines.program import Along, Lines
from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.text.grid import WARP

ROWS_ENOUGH = 256
"""Minimum number of rows at which whole rows keep a device busy."""
ROW_PART = 4096
"""Minimum number of elements per part of a row."""
COLUMNS_ENOUGH = 128 * WARP
"""Minimum number of columns at which whole columns keep a device busy."""
COLUMN_PART = 128
"""Minimum number of elements per part of a column."""
BLOCKS_WANTED = 512
"""Number of blocks that keep a device busy."""


def chunks_of(program: Lines) -> int:
    """Return the number of parts into which each line is split: 1 if whole lines keep a device
    busy."""
    enough, part = (ROWS_ENOUGH, ROW_PART) if program.by_rows else (COLUMNS_ENOUGH, COLUMN_PART)
    if program.lines >= enough or program.length < 2 * part:
        return 1
    blocks = program.lines if program.by_rows else -(-program.lines // WARP)
    return max(1, min(-(-program.length // part), -(-BLOCKS_WANTED // blocks)))


def lines_kernels(program: Along, workspaces: int = 0) -> NodeCalls:
    """Return the calls of a line program; few long lines are split into parts.

    Their scratch tensors are numbered from `workspaces` on, and only these are in the result's
    list.
    """
    if program.whole:
        return NodeCalls((line_kernel(program.op, program.lines),))
    lines = program.lines.in_memory_order()
    chunks = chunks_of(lines)
    if chunks == 1:
        return NodeCalls((line_kernel(program.op, lines),))
    programs, scratch = in_parts(program.op, lines, chunks, workspaces)
    calls = [
        line_kernel(program.op, each.lines, each.chunks)
        if isinstance(each, Part)
        else elementwise(each)
        for each in programs
    ]
    return NodeCalls(tuple(calls), tuple(scratch))
