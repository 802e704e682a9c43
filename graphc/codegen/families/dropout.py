"""Dropout: each thread draws the four words of a Philox block, and so decides on four elements."""

from __future__ import annotations

import math

from graphc.codegen.node_calls import NodeCalls
from graphc.codegen.rules import kernels_of
from graphc.codegen.text.access import Access, indented, parameters
from graphc.codegen.text.grid import grid_kernel, over_grid
from graphc.codegen.text.operands import Operand, Places, index_type
from graphc.codegen.text.scalar import arithmetic_dtype, literal
from graphc.ir.graph import Node

WORDS = 4
"""Random words of one block."""


@kernels_of("dropout")
def _dropout(node: Node, places: Places) -> NodeCalls:
    """Dropout of an x that lies in one piece, as does y.

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
        f"const bool stays = words[lane] >> 8 >= {math.ceil(rate * 2**24)}u;",
        f"narrow(stays ? {kept} : {literal(0.0, held)}, {writing.target()});",
    ]
    around = [reading.load(), writing.open()]
    if not whole:
        lane = [f"if (place + lane >= {elements}u) break;", *around, *lane]
    blocks = -(-elements // WORDS)
    inner = [
        "unsigned words[4] = {unsigned(block), 0u, stream, unsigned(step[0])};",
        "philox(words, unsigned(seed[0]), unsigned(seed[1]));",
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
