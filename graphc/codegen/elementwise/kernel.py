"""Elementwise kernels: one thread per pack of elements, in a grid-stride loop.

At each element, all operands are read before any output is written. So an output may overwrite any
operand with the same address and strides.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from graphc.codegen.elementwise.program import Each
from graphc.codegen.node_calls import Launch
from graphc.codegen.text.access import WIDEST, Access, accesses, indented, parameters
from graphc.codegen.text.grid import BLOCK, GRID_LIMIT
from graphc.codegen.text.kernel import ENTRY, named
from graphc.codegen.text.operands import (
    VECTOR_BYTES,
    Operand,
    collapse,
    decompose,
    index_type,
    order_of,
    packs,
)
from graphc.codegen.text.scalar import ScalarCode, arithmetic_dtype, floating
from graphc.ir.expression import Expression
from graphc.ir.types import DType


def elementwise(program: Each) -> Launch:
    """Return one launch that runs an elementwise program."""
    shape, inputs, outputs = program.shape, program.inputs, program.outputs
    # Threads are numbered in the memory order of the output, so that neighbors write contiguously.
    order = order_of(shape, outputs)
    ordered = tuple(shape[axis] for axis in order)
    extents, operands = collapse(ordered, [o.permuted(order) for o in (*inputs, *outputs)])
    sources, targets = operands[: len(inputs)], operands[len(inputs) :]
    elements = math.prod(extents)
    width = pack_width(extents, sources, targets)
    packed, rest = divmod(elements, width)

    def body(width: int, place: str) -> str:
        return element_code(
            extents, sources, targets, program.expressions, program.locals, width, place
        )

    loops = [loop("thread", f"{packed}u", width, body)]
    if rest:
        loops.append(loop(f"{packed * width}u + thread", f"{elements}u", 1, body))
    text = (
        f'extern "C" __global__ void {ENTRY}({parameters(inputs, outputs)}) {{\n'
        f"    using Index = {index_type(extents, operands)};\n"
        "    const Index thread = Index(blockIdx.x) * blockDim.x + threadIdx.x;\n"
        "    const Index threads = Index(gridDim.x) * blockDim.x;\n" + "".join(loops) + "}\n"
    )
    arguments = tuple(o.buffer for o in (*inputs, *outputs) if o.buffer is not None)
    grid = min(GRID_LIMIT, -(-max(packed, rest) // BLOCK))
    return Launch(named(program.op, text), arguments, grid, BLOCK)


def pack_width(
    extents: Sequence[int], sources: Sequence[Operand], targets: Sequence[Operand]
) -> int:
    """Return the number of elements per pack.

    A pack has 16 bytes of the narrowest operand that can be packed, or fewer if outputs cannot be
    written by such packs.
    """
    tensors = [o for o in (*sources, *targets) if packs(o, VECTOR_BYTES // o.dtype.itemsize)]
    width = max((min(WIDEST, VECTOR_BYTES // o.dtype.itemsize) for o in tensors), default=1)
    while width > 1:
        whole = extents[-1] % width == 0 or (len(extents) == 1 and extents[0] >= width)
        if whole and all(packs(target, width) for target in targets):
            break
        width //= 2
    return width


def loop(first: str, last: str, width: int, body: Callable[[int, str], str]) -> str:
    """Return a grid-stride loop over the packs of `width` elements in `[first, last)`.

    `body` returns the code for a width and a position.
    """
    code = body(width, f"item * {width}u" if width > 1 else "item")
    return f"    for (Index item = {first}; item < {last}; item += threads) {{\n{code}\n    }}\n"


def element_code(
    extents: Sequence[int],
    sources: Sequence[Operand],
    targets: Sequence[Operand],
    expressions: Mapping[str, Expression],
    locals: Mapping[str, DType],
    width: int,
    place: str,
) -> str:
    """Return statements that evaluate the expressions for `width` elements from `place` on."""
    split, indices = decompose("place", extents, "i")
    reads, writes = accesses(sources, indices, width), accesses(targets, indices, width)
    lanes = _lane_code(reads, writes, expressions, locals)
    statements = [f"const Index place = {place};", *split]
    statements += [access.load() for access in reads] + [access.open() for access in writes]
    if width > 1:
        inner = indented(lanes, 1)
        statements.append(
            f"#pragma unroll\nfor (int lane = 0; lane < {width}; ++lane) {{\n{inner}\n}}"
        )
    else:
        statements += lanes
    statements += [statement for access in writes for statement in access.close()]
    return indented(statements, 2)


def _lane_code(
    reads: Sequence[Access],
    writes: Sequence[Access],
    expressions: Mapping[str, Expression],
    locals: Mapping[str, DType],
) -> list[str]:
    """Return statements that evaluate the expressions for one lane of a pack."""
    beside_none = floating([access.operand.dtype for access in (*reads, *writes)])
    if beside_none is None and not reads:
        beside_none = arithmetic_dtype(writes[0].operand.dtype)
    scalar = ScalarCode(beside_none)
    for access in reads:
        scalar.declare(access.operand.name, access.operand.dtype, access.read())
    read = {name for expression in expressions.values() for name in expression.names}
    written = {access.operand.name: access for access in writes}
    for name, expression in expressions.items():
        if name in locals:
            scalar.define(name, locals[name], expression)
            continue
        access = written[name]
        scalar.assign(expression, access.operand.dtype, access.target())
        if name in read:  # later expressions read an output as it was rounded when stored
            scalar.declare(name, access.operand.dtype, f"widen({access.target()})")
    return scalar.statements
