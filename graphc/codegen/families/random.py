"""Random ops: each thread draws the four words of a Philox block and computes its elements."""

from __future__ import annotations

import math

from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.rules import kernels_of
from graphc.codegen.text.access import Access, indented, parameters
from graphc.codegen.text.grid import grid_kernel, over_grid
from graphc.codegen.text.operands import Operand, Places, index_type
from graphc.codegen.text.scalar import C_TYPES, arithmetic_dtype, literal
from graphc.ir.graph import Node
from graphc.ir.types import DType, float32
from graphc.ops.random import Noise, Normal, least_that_stays

WORDS = 4
"""Random words per block."""

DRAWN = (
    "unsigned words[4] = {unsigned(block), 0u, stream, unsigned(step[0])};",
    "philox(words, unsigned(seed[0]), unsigned(seed[1]));",
)


@kernels_of("dropout")
def _dropout(node: Node, places: Places) -> NodeCalls:
    """Apply dropout to a contiguous x, with a contiguous y.

    The stream's number is an argument, so layers of one shape share a kernel.
    """
    x, seed, step = node.inputs
    y, rate = node.output, node.attributes.rate
    elements = y.type.elements
    source, target = (
        Operand(name, value.type.dtype, (1,), value, places[value].address)
        for name, value in (("x", x), ("y", y))
    )
    numbers = [Operand(n, v.type.dtype, (0,), v) for n, v in (("seed", seed), ("step", step))]
    held = arithmetic_dtype(x.type.dtype)
    whole = elements % WORDS == 0
    at, width = ("place", WORDS) if whole else ("place + lane", 1)
    reading, writing = Access(source, at, width), Access(target, at, width)
    kept = f"{reading.read()} * {literal(1 / (1 - rate), held)}"
    lane = [
        f"const bool stays = words[lane] >> 8 >= {least_that_stays(rate)}u;",
        f"narrow(stays ? {kept} : {literal(0.0, held)}, {writing.target()});",
    ]
    around = [reading.load(), writing.open()]
    if not whole:
        lane = [f"if (place + lane >= {elements}u) break;", *around, *lane]
    blocks = -(-elements // WORDS)
    inner = [
        *DRAWN,
        f"const Index place = block * {WORDS}u;",
        *(around if whole else []),
        f"#pragma unroll\nfor (int lane = 0; lane < {WORDS}; ++lane) {{\n{indented(lane, 1)}\n}}",
        *writing.close(),
    ]
    given = f"{parameters([source, *numbers], [target])}, unsigned stream"
    index = index_type((elements,), [source])
    kernel = grid_kernel("dropout", blocks, index, given, inner, item="block")
    arguments = (x, seed, step, y, node.attributes.stream % 2**32)
    return NodeCalls((over_grid(kernel, arguments, blocks),))


@kernels_of(Noise)
def _noise(node: Node, places: Places) -> NodeCalls:
    """Draw numbers of a distribution for a contiguous y."""
    seed, step = node.inputs
    y, op = node.output, node.op
    assert isinstance(op, Noise)
    dtype, elements = y.type.dtype, y.type.elements
    held, lanes = arithmetic_dtype(dtype), op.lanes(dtype)
    target = Operand("y", dtype, (1,), y, places[y].address)
    numbers = [Operand(n, v.type.dtype, (0,), v) for n, v in (("seed", seed), ("step", step))]
    whole = elements % lanes == 0
    at, width = ("place", lanes) if whole else ("place + lane", 1)
    writing = Access(target, at, width)
    offset, factor = (literal(number, held) for number in op.line(node.attributes))
    lane = [f"narrow(drawn[lane] * {factor} + {offset}, {writing.target()});"]
    if not whole:
        lane = [f"if (place + lane >= {elements}u) break;", writing.open(), *lane]
    blocks = -(-elements // lanes)
    inner = [
        *DRAWN,
        f"{C_TYPES[held]} drawn[{lanes}];",
        *_standard(op, held, op.unit(dtype)),
        f"const Index place = block * {lanes}u;",
        *([writing.open()] if whole else []),
        f"#pragma unroll\nfor (int lane = 0; lane < {lanes}; ++lane) {{\n{indented(lane, 1)}\n}}",
        *writing.close(),
    ]
    given = f"{parameters(numbers, [target])}, unsigned stream"
    kernel = grid_kernel(
        op.name, blocks, index_type((elements,), [target]), given, inner, item="block"
    )
    arguments = (seed, step, y, node.attributes.stream % 2**32)
    return NodeCalls((over_grid(kernel, arguments, blocks),))


def _standard(op: Noise, held: DType, unit: float) -> list[str]:
    """Return statements that fill `drawn` with numbers of the standard distribution."""
    kind, suffix = C_TYPES[held], "f" if held == float32 else ""
    if held == float32:
        fractions = [f"{kind}(words[{lane}] >> 8)" for lane in range(4)]
    else:
        word = "(unsigned long long)(words[{}] >> 5) << 26 | words[{}] >> 6"
        fractions = [f"{kind}({word.format(at, at + 1)})" for at in (0, 2)]
    step = literal(unit, held)
    if not isinstance(op, Normal):
        return [f"drawn[{lane}] = {each} * {step};" for lane, each in enumerate(fractions)]
    one, two = literal(1.0, held), literal(-2.0, held)
    turn = literal(2 * math.pi, held)
    statements = []
    for at in range(0, len(fractions), 2):
        near = f"({fractions[at]} + {one}) * {step}"
        statements += [
            f"const {kind} radius{at} = sqrt{suffix}(log{suffix}({near}) * {two});",
            f"const {kind} angle{at} = {fractions[at + 1]} * {step} * {turn};",
            f"drawn[{at}] = cos{suffix}(angle{at}) * radius{at};",
            f"drawn[{at + 1}] = sin{suffix}(angle{at}) * radius{at};",
        ]
    return statements
