"""8-bit products and the kernels around them: storing operands, transposing them, updating scales.

Tensor cores read 8-bit operands only along contiguous sums: the columns of both column-major
matrices, which is the form TN of a BLAS. A matrix with sums along the other axis is transposed into
scratch first, which moves 2 bytes per element.
"""

from __future__ import annotations

from graphc.codegen.elementwise.ops import copied
from graphc.codegen.node_calls import Buffer, Gemm, Launch, Matrix, NodeCalls, Scratch
from graphc.codegen.products.gemm import COMPUTE_32F
from graphc.codegen.rules import ProductOptions, kernels_of, products_of
from graphc.codegen.text.access import indented
from graphc.codegen.text.grid import BLOCK, GRID_LIMIT
from graphc.codegen.text.kernel import ENTRY, named
from graphc.codegen.text.operands import INDEX_LIMIT, VECTOR_BYTES, Places
from graphc.codegen.text.scalar import C_TYPES, literal
from graphc.ir.graph import Node, Value
from graphc.ir.types import LARGEST, TensorType, float32
from graphc.ops.float8 import HISTORY, MOST_SCALE

PACK = 8
"""Elements that a thread stores at a time: 8 bytes, from 16 bytes of 16-bit floats."""

MOST_BLOCKS = 1024
"""Maximum number of blocks that store an operand; each has a maximum of its own."""

TILE, SEGMENT = 64, 16
"""Extent of the tiles that are transposed, and bytes that a thread reads and writes at a time."""


@kernels_of("quantize")
def _quantize(node: Node, places: Places) -> NodeCalls:
    """Return the launches that store an operand and find its largest magnitude.

    Every block finds the maximum of its elements; a second launch finds that of all blocks.
    """
    x, scale = node.inputs
    y, maximum = node.outputs
    count = x.type.elements
    is_aligned = all(places[value].address % VECTOR_BYTES == 0 for value in (x, y))
    width = PACK if is_aligned and count % PACK == 0 else 1
    # The number of blocks must not depend on addresses, as the scratch does not.
    blocks = min(MOST_BLOCKS, -(-count // (PACK * BLOCK)))
    parameters = f"const {C_TYPES[x.type.dtype]} *x, const float *scale, {C_TYPES[y.type.dtype]} *y"
    text = (
        f'extern "C" __global__ void {ENTRY}({parameters}, float *most) {{\n'
        f"    using Index = {_index(count)};\n"
        "    const float factor = scale[1];\n"
        "    float found = 0.0f;\n"
        f"    Index item = Index(blockIdx.x) * {BLOCK}u + threadIdx.x;\n"
        f"    for (; item < {count // width}u; item += {blocks * BLOCK}u) {{\n"
        f"        const auto given = load<{width}>(x + item * {width}u);\n"
        f"        Pack<{C_TYPES[y.type.dtype]}, {width}> stored;\n"
        "        #pragma unroll\n"
        f"        for (int lane = 0; lane < {width}; ++lane) {{\n"
        "            const float number = widen(given.lane[lane]);\n"
        "            found = maximum(found, fabsf(number));\n"
        "            narrow(number * factor, stored.lane[lane]);\n"
        "        }\n"
        f"        store<{width}>(y + item * {width}u, stored);\n"
        "    }\n"
        f"    found = across_row<Max, {BLOCK}>(found);\n"
        "    if (threadIdx.x == 0) most[blockIdx.x] = found;\n}\n"
    )
    if blocks == 1:
        return NodeCalls((Launch(named("quantize", text), (x, scale, y, maximum), 1, BLOCK),))
    parts = Scratch(0)
    stores = Launch(named("quantize", text), (x, scale, y, parts), blocks, BLOCK)
    return NodeCalls((stores, _maximum(parts, blocks, maximum)), (TensorType((blocks,), float32),))


def _maximum(parts: Buffer, count: int, result: Value) -> Launch:
    """Return the launch of one block that finds the maximum of `count` numbers."""
    text = (
        f'extern "C" __global__ void {ENTRY}(const float *parts, float *most) {{\n'
        "    float found = 0.0f;\n"
        f"    for (unsigned item = threadIdx.x; item < {count}u; item += {BLOCK}u)\n"
        "        found = maximum(found, parts[item]);\n"
        f"    found = across_row<Max, {BLOCK}>(found);\n"
        "    if (threadIdx.x == 0) most[0] = found;\n}\n"
    )
    return Launch(named("quantize_maximum", text), (parts, result), 1, BLOCK)


@kernels_of("scale_update")
def _scale_update(node: Node, places: Places) -> NodeCalls:
    limit = literal(LARGEST[node.attributes.stored], float32)
    names = ("float *scale", "float *history", "const float *maximum_of_step")
    parameters = ", ".join((*names, "float *scale_new", "float *history_new"))
    body = [
        f"const float largest = {literal(LARGEST[float32], float32)};",
        "const float first = maximum_of_step[0] <= largest ? maximum_of_step[0] : 0.0f;",
        "float most = first, factor = scale[1], inverse = scale[0];",
        f"for (int slot = {HISTORY - 1}; slot > 0; --slot) {{\n"
        "    history_new[slot] = history[slot - 1];\n"
        "    most = maximum(most, history_new[slot]);\n}",
        "history_new[0] = first;",
        "if (most > 0.0f) {\n"
        f"    factor = minimum({limit} / most, {literal(MOST_SCALE, float32)});\n"
        "    inverse = 1.0f / factor;\n}",
        "scale_new[0] = inverse;",
        "scale_new[1] = factor;",
    ]
    text = (
        f'extern "C" __global__ void {ENTRY}({parameters}) {{\n'
        "    if (threadIdx.x != 0) return;\n"
        f"{indented(body, 1)}\n}}\n"
    )
    values = (*node.inputs, *node.outputs)
    return NodeCalls((Launch(named("scale_update", text), values, 1, 1),))


@products_of("float8_product", "float8_linear")
def _product(node: Node, places: Places, options: ProductOptions) -> NodeCalls:
    """Return the calls of an 8-bit product: transpositions of operands, then the product.

    The bias is an epilogue if there are epilogues; otherwise it is copied into the output first.
    """
    a, b, scale_a, scale_b = node.inputs[:4]
    y, flags, bias = node.output, node.attributes, node.inputs[5:]
    scratch: list[TensorType] = []
    transposing: list[Launch] = []

    def with_contiguous_sums(value: Value, is_transposed: bool) -> Matrix:
        buffer: Buffer = value
        if is_transposed:
            buffer = Scratch(len(scratch))
            scratch.append(value.type.with_shape(value.shape[::-1]))
            transposing.append(_transposed(value, buffer))
        return Matrix(buffer, value.type.dtype, 0, inner, 0)

    rows, columns = y.shape
    inner = a.shape[0] if flags.transpose_a else a.shape[1]
    second = with_contiguous_sums(a, flags.transpose_a)
    first = with_contiguous_sums(b, not flags.transpose_b)
    has_epilogue = bool(bias) and options.epilogues
    product = Gemm(
        True, False, columns, rows, inner,
        first, second, Matrix(y, y.type.dtype, 0, columns, 0),
        beta=float(bool(bias) and not has_epilogue), batch=1, compute=COMPUTE_32F,
        epilogue="bias" if has_epilogue else "none", bias=bias[0] if has_epilogue else None,
        factors=(scale_b, scale_a),
    )  # fmt: skip
    added = () if has_epilogue else tuple(copied(value, y, places) for value in bias)
    return NodeCalls((*transposing, *added, product), tuple(scratch))


def _transposed(value: Value, target: Scratch) -> Launch:
    """Return the launch that transposes a matrix of bytes, tile by tile.

    Its extents are multiples of `SEGMENT`.
    """
    rows, columns = value.shape
    kind, across = C_TYPES[value.type.dtype], -(-columns // TILE)
    tiles = -(-rows // TILE) * across
    body = [
        f"using Index = {_index(value.type.elements)};",
        f"__shared__ {kind} tile[{TILE}][{TILE + 4}];",
        f"const unsigned own = threadIdx.x / {TILE // SEGMENT}u;",
        f"const unsigned start = threadIdx.x % {TILE // SEGMENT}u * {SEGMENT}u;",
        f"for (Index number = blockIdx.x; number < {tiles}u; number += gridDim.x) {{",
        f"    const Index row = number / {across}u * {TILE}u;",
        f"    const Index column = number % {across}u * {TILE}u;",
        f"    if (row + own < {rows}u && column + start < {columns}u) {{",
        f"        const auto given = load<{SEGMENT}>(x + (row + own) * {columns}u + column + start);",
        "        #pragma unroll",
        f"        for (int lane = 0; lane < {SEGMENT}; ++lane)",
        "            tile[own][start + lane] = given.lane[lane];",
        "    }",
        "    __syncthreads();",
        f"    if (column + own < {columns}u && row + start < {rows}u) {{",
        f"        Pack<{kind}, {SEGMENT}> turned;",
        "        #pragma unroll",
        f"        for (int lane = 0; lane < {SEGMENT}; ++lane)",
        "            turned.lane[lane] = tile[start + lane][own];",
        f"        store<{SEGMENT}>(y + (column + own) * {rows}u + row + start, turned);",
        "    }",
        "    __syncthreads();",
        "}",
    ]
    text = (
        f'extern "C" __global__ void {ENTRY}(const {kind} *x, {kind} *y) {{\n'
        f"{indented(body, 1)}\n}}\n"
    )
    grid = min(GRID_LIMIT, tiles)
    return Launch(named("transposed", text), (value, target), grid, TILE * TILE // SEGMENT)


def _index(count: int) -> str:
    return "unsigned" if count < INDEX_LIMIT else "unsigned long long"
