"""8-bit products, and the kernels that store and transpose their operands.

Tensor cores read 8-bit operands only along contiguous sums: the columns of both column-major
matrices, which is the form TN of a BLAS. A matrix with sums along the other axis is transposed into
scratch first, which moves 2 bytes per element.
"""

from __future__ import annotations

from graphc.codegen.elementwise.ops import copied
from graphc.codegen.node_calls import Buffer, Gemm, Launch, Matrix, NodeCalls, Scratch
from graphc.codegen.products.gemm import COMPUTE_32F
from graphc.codegen.products.scale_updates import scale_updates
from graphc.codegen.rules import ProductOptions, kernels_of, products_of
from graphc.codegen.text.access import indented
from graphc.codegen.text.grid import BLOCK, GRID_LIMIT
from graphc.codegen.text.kernel import ENTRY, named
from graphc.codegen.text.operands import INDEX_LIMIT, VECTOR_BYTES, Places
from graphc.codegen.text.scalar import C_TYPES
from graphc.ir.graph import Node, Value
from graphc.ir.types import TensorType
from graphc.ops.reduce import BLOCK_ELEMENTS

PACK = 8
"""Elements that a thread stores at a time: 8 bytes, from 16 bytes of 16-bit floats."""

TILE, SEGMENT = 64, 16
"""Extent of the tiles that are transposed, and bytes that a thread reads and writes at a time."""


@kernels_of("quantize")
def _quantize(node: Node, places: Places) -> NodeCalls:
    """Return the launch that stores an operand; a block of threads has a block of its elements."""
    x, scale = node.inputs
    y, maxima = node.outputs
    count = x.type.elements
    is_aligned = all(places[value].address % VECTOR_BYTES == 0 for value in (x, y))
    width = PACK if is_aligned and count % PACK == 0 else 1
    types = C_TYPES[x.type.dtype], C_TYPES[y.type.dtype]
    text = (
        f'extern "C" __global__ void {ENTRY}(const {types[0]} *x, const float *scale, '
        f"{types[1]} *y, float *maxima) {{\n"
        f"    using Index = {_index(count)};\n"
        "    const float factor = scale[1];\n"
        "    float found = 0.0f;\n"
        f"    const Index first = Index(blockIdx.x) * {BLOCK_ELEMENTS}u;\n"
        f"    const Index rest = {count}u - first;\n"
        f"    const Index end = rest < {BLOCK_ELEMENTS}u ? rest : {BLOCK_ELEMENTS}u;\n"
        f"    for (Index item = threadIdx.x * {width}u; item < end; item += {BLOCK * width}u) {{\n"
        f"        const auto given = load<{width}>(x + first + item);\n"
        f"        Pack<{types[1]}, {width}> stored;\n"
        "        #pragma unroll\n"
        f"        for (int lane = 0; lane < {width}; ++lane) {{\n"
        "            const float number = widen(given.lane[lane]);\n"
        "            found = maximum(found, fabsf(number));\n"
        "            narrow(number * factor, stored.lane[lane]);\n"
        "        }\n"
        f"        store<{width}>(y + first + item, stored);\n"
        "    }\n"
        f"    found = across_row<Max, {BLOCK}>(found);\n"
        "    if (threadIdx.x == 0) maxima[blockIdx.x] = found;\n}\n"
    )
    blocks = maxima.type.elements
    return NodeCalls((Launch(named("quantize", text), (x, scale, y, maxima), blocks, BLOCK),))


@kernels_of("scale_update")
def _scale_update(node: Node, places: Places) -> NodeCalls:
    return NodeCalls((scale_updates((node,)),))


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
