"""Rows selected by index tuples: read, and combined with updates.

A scatter first writes the row number of each lookup to scratch. Then a warp takes some columns of
one row and searches the lookups of its batch entry for the row (`lookup`). So updates are combined
in the order of the lookups on any device, without atomics and without sorting. A lookup outside its
axis reads the nearest row, and writes nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from graphc.codegen.elementwise.ops import copied
from graphc.codegen.families.lookup import row_updates
from graphc.codegen.node_calls import Call, NodeCalls, Scratch
from graphc.codegen.rules import kernels_of
from graphc.codegen.text.access import parameters
from graphc.codegen.text.grid import grid_kernel, over_grid
from graphc.codegen.text.operands import (
    Operand,
    Places,
    decompose,
    offset,
    operand,
    widest_index,
)
from graphc.codegen.text.scalar import arithmetic_dtype
from graphc.ir.graph import Node
from graphc.ir.types import TensorType, int64
from graphc.ops.scatter import Scatter, Tuples

STEPS: Mapping[str, str] = {
    "scatter_nd": "update",
    "scatter_nd_add": "add(total[t], update)",
    "scatter_nd_mul": "multiply(total[t], update)",
    "scatter_nd_max": "maximum(total[t], update)",
    "scatter_nd_min": "Min::combine(total[t], update)",
}
"""The C++ expression of an element after an update, by op."""


@kernels_of("gather_nd")
def _gather(node: Node, places: Places) -> NodeCalls:
    """Return the calls of gather_nd: a kernel with one thread per element of y."""
    assert isinstance(node.op, Tuples)
    (x, tuples), y, found = node.inputs, node.output, node.op.lookups(node)
    source, numbers = (
        operand(n, v, places[v], v.shape) for n, v in (("x", x), ("numbers", tuples))
    )
    target = operand("y", y, places[y], y.shape)
    split, indices = decompose("item", y.shape, "i")
    batch, lookup = len(found.batch), len(found.batch) + len(found.lookups)
    step, begin = numbers.strides[-1], offset(indices[:lookup], numbers.strides[:-1])
    body = [*split, f"const Index tuple = {begin};"]
    where = [*indices[:batch]]
    for place, extent in enumerate(found.numbered):
        body += _number(place, extent, f"numbers[tuple + {place * step}u]")
        body.append(
            f"const Index at{place} = n{place} < 0 ? 0 : n{place} < {extent} ? n{place} : "
            f"{extent - 1};"
        )
        where.append(f"at{place}")
    where += indices[lookup:]
    body.append(f"y[{offset(indices, target.strides)}] = x[{offset(where, source.strides)}];")
    index = widest_index([(x.shape, source), (tuples.shape, numbers), (y.shape, target)])
    items = y.type.elements
    kernel = grid_kernel(node.op.name, items, index, parameters([source, numbers], [target]), body)
    return NodeCalls((over_grid(kernel, (x, tuples, y), items),))


def _number(place: int, extent: int, read: str) -> list[str]:
    """Return declarations of component `place` of an index tuple; negative indices count from the
    end."""
    return [
        f"const long long given{place} = {read};",
        f"const long long n{place} = given{place} < 0 ? given{place} + {extent} : given{place};",
    ]


@kernels_of(Scatter)
def _scatter(node: Node, places: Places) -> NodeCalls:
    """Return the calls of a scatter: compute the row of each lookup, then update the rows of y. A
    copy of x precedes if y does not overwrite x."""
    assert isinstance(node.op, Scatter)
    (x, tuples, updates), y, found = node.inputs, node.output, node.op.lookups(node)
    rows = Operand("rows", int64, (1,), Scratch(0))
    width = len(found.numbered)
    numbers = Operand("numbers", tuples.type.dtype, (width, 1), tuples)
    body, row, inside = [], "0", []
    for place, extent in enumerate(found.numbered):
        body += _number(place, extent, f"numbers[item * {width}u + {place}u]")
        row = f"n{place}" if row == "0" else f"({row}) * {extent} + n{place}"
        inside.append(f"n{place} >= 0 && n{place} < {extent}")
    body.append(f"rows[item] = {' && '.join(inside)} ? {row} : -1;")
    index = widest_index([((found.count, width), numbers)])
    given = parameters([numbers], [rows])
    kernel = grid_kernel(f"{node.op.name}_rows", found.count, index, given, body)
    columns = math.prod(found.rest)
    combined = row_updates(
        node.op.name,
        math.prod(found.batch),
        (found.rows, columns),
        found.each,
        rows,
        Operand("updates", updates.type.dtype, (columns, 1), updates),
        Operand("y", y.type.dtype, (columns, 1), y),
        STEPS[node.op.name],
        arithmetic_dtype(y.type.dtype),
        scratch=1,
    )
    moved: tuple[Call, ...] = ()
    if places[x] != places[y]:
        moved = (copied(x, y, places),)
    numbered = over_grid(kernel, (tuples, Scratch(0)), found.count)
    scratch = (TensorType((found.count,), int64), *combined.scratch)
    return NodeCalls((*moved, numbered, *combined.calls), scratch)
