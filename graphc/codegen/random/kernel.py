"""CUDA kernels of random programs: each thread computes the elements of a Philox block."""

from __future__ import annotations

from graphc.codegen.node_calls import Launch
from graphc.codegen.random.program import Drawn
from graphc.codegen.text.access import Access, indented, parameters
from graphc.codegen.text.grid import grid_kernel, over_grid
from graphc.codegen.text.operands import index_type
from graphc.codegen.text.scalar import C_TYPES, ScalarCode
from graphc.ir.types import float64

OF_FLOAT64 = "((unsigned long long)(words[{}] >> 5) << 26 | words[{}] >> 6)"
"""The C++ expression of the integer of 53 bits that two random words form."""


def drawn_kernel(program: Drawn) -> Launch:
    """Return the launch that runs a random program. The number of the random stream is an argument,
    so layers of one shape share a kernel.
    """
    lanes, inputs, output = program.lanes, program.inputs, program.output
    whole = program.elements % lanes == 0
    at, width = ("place", lanes) if whole else ("place + lane", 1)
    reads, write = [Access(each, at, width) for each in inputs], Access(output, at, width)
    code = ScalarCode(program.dtype)
    code.declare("drawn", program.dtype, "drawn[lane]")
    for read in reads:
        code.declare(read.operand.name, read.operand.dtype, read.read())
    code.assign(program.result, output.dtype, write.target())
    lane, around = code.statements, [*(read.load() for read in reads), write.open()]
    if not whole:
        lane = [f"if (place + lane >= {program.elements}u) break;", *around, *lane]
    blocks = -(-program.elements // lanes)
    body = [
        "unsigned words[4] = {unsigned(block), 0u, stream, unsigned(step[0])};",
        "philox(words, unsigned(seed[0]), unsigned(seed[1]));",
        f"{C_TYPES[program.dtype]} drawn[{lanes}];",
        *_standard(program),
        f"const Index place = block * {lanes}u;",
        *(around if whole else []),
        f"#pragma unroll\nfor (int lane = 0; lane < {lanes}; ++lane) {{\n{indented(lane, 1)}\n}}",
        *write.close(),
    ]
    sources = [*inputs, program.seed, program.step]
    given = f"{parameters(sources, [output])}, unsigned stream"
    index = index_type((program.elements,), [output])
    kernel = grid_kernel(program.op, blocks, index, given, body, item="block")
    buffers = tuple(each.buffer for each in (*sources, output) if each.buffer is not None)
    return over_grid(kernel, (*buffers, program.stream % 2**32), blocks)


def _standard(program: Drawn) -> list[str]:
    """Return statements that fill `drawn` with the values of the elements of a block."""
    if program.dtype == float64:
        bits = [OF_FLOAT64.format(at, at + 1) for at in (0, 2)]
    else:
        bits = [f"(words[{at}] >> 8)" for at in range(4)]
    statements, size = [], len(program.standard)
    for first in range(0, program.lanes, size):
        code = ScalarCode(program.dtype)
        for name, number in zip(("first", "second"), bits[first : first + size], strict=False):
            code.declare(name, program.dtype, f"{C_TYPES[program.dtype]}{number}")
        for at, expression in enumerate(program.standard, first):
            code.assign(expression, program.dtype, f"drawn[{at}]")
        statements.append(f"{{\n{indented(code.statements, 1)}\n}}")
    return statements
