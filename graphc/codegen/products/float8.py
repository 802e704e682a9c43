"""8-bit products, and the kernels that store their operands."""

from __future__ import annotations

from graphc.codegen.elementwise.ops import copied
from graphc.codegen.node_calls import Gemm, Launch, Matrix, NodeCalls
from graphc.codegen.products.gemm import COMPUTE_32F
from graphc.codegen.products.scale_updates import scale_updates
from graphc.codegen.rules import ProductOptions, kernels_of, products_of
from graphc.codegen.text.access import indented
from graphc.codegen.text.grid import BLOCK
from graphc.codegen.text.kernel import ENTRY, named
from graphc.codegen.text.operands import INDEX_LIMIT, VECTOR_BYTES, Places
from graphc.codegen.text.scalar import C_TYPES
from graphc.ir.graph import Node
from graphc.ops.float8 import TILE, Float8Product, Quantization

SEGMENT = 16
"""Elements that a thread stores at a time; the extents of operands are multiples of it."""


@kernels_of(Quantization)
def _quantize(node: Node, places: Places) -> NodeCalls:
    """Return the launch that stores an operand, its transpose, or both; a block stores a tile."""
    x, scale = node.inputs
    outputs = node.named_outputs()
    rows, columns = x.shape
    kind, stored = C_TYPES[x.type.dtype], C_TYPES[node.outputs[0].type.dtype]
    is_aligned = places[x].address % VECTOR_BYTES == 0
    across, segments = -(-columns // TILE), TILE // SEGMENT
    rounds = TILE * segments // BLOCK
    write = f"store<{SEGMENT}>(y + at, own);"
    keep = f"for (int i = 0; i < {SEGMENT}; ++i) tile[line][start + i] = own.lane[i];"
    turn = [
        "__syncthreads();",
        f"for (unsigned round = 0; round < {rounds}u; ++round) {{",
        f"    const unsigned item = round * {BLOCK}u + threadIdx.x;",
        f"    const unsigned line = item / {segments}u, start = item % {segments}u * {SEGMENT}u;",
        f"    if (column + line >= {columns}u || row + start >= {rows}u) continue;",
        f"    Pack<{stored}, {SEGMENT}> own;",
        f"    for (int i = 0; i < {SEGMENT}; ++i) own.lane[i] = tile[start + i][line];",
        f"    store<{SEGMENT}>(turned + (column + line) * {rows}u + row + start, own);",
        "}",
    ]
    body = [
        f"using Index = {_index(x.type.elements)};",
        *([f"__shared__ {stored} tile[{TILE}][{TILE + 2}];"] * ("turned" in outputs)),
        f"const Index row = blockIdx.x / {across}u * {TILE}u;",
        f"const Index column = blockIdx.x % {across}u * {TILE}u;",
        "const float factor = scale[1];",
        "float found = 0.0f;",
        f"for (unsigned round = 0; round < {rounds}u; ++round) {{",
        f"    const unsigned item = round * {BLOCK}u + threadIdx.x;",
        f"    const unsigned line = item / {segments}u, start = item % {segments}u * {SEGMENT}u;",
        f"    if (row + line >= {rows}u || column + start >= {columns}u) continue;",
        f"    const Index at = (row + line) * {columns}u + column + start;",
        *([f"    const auto given = load<{SEGMENT}>(x + at);"] * is_aligned),
        *([f"    const {kind} *given = x + at;"] * (not is_aligned)),
        f"    Pack<{stored}, {SEGMENT}> own;",
        "    #pragma unroll",
        f"    for (int i = 0; i < {SEGMENT}; ++i) {{",
        f"        const float number = widen(given{'.lane' * is_aligned}[i]);",
        "        found = maximum(found, fabsf(number));",
        "        narrow(number * factor, own.lane[i]);",
        "    }",
        *([f"    {write}"] * ("y" in outputs)),
        *([f"    {keep}"] * ("turned" in outputs)),
        "}",
        *(turn * ("turned" in outputs)),
        f"found = across_row<Max, {BLOCK}>(found);",
        "if (threadIdx.x == 0) maxima[blockIdx.x] = found;",
    ]
    targets = "".join(f", {stored} *{name}" for name in outputs if name != "maxima")
    text = (
        f'extern "C" __global__ void {ENTRY}(const {kind} *x, const float *scale{targets}, '
        f"float *maxima) {{\n{indented(body, 1)}\n}}\n"
    )
    tiles = node.outputs[-1].type.elements
    kernel = named(node.op.name, text)
    return NodeCalls((Launch(kernel, (x, scale, *node.outputs), tiles, BLOCK),))


@kernels_of("scale_update")
def _scale_update(node: Node, places: Places) -> NodeCalls:
    return NodeCalls((scale_updates((node,)),))


@products_of(Float8Product)
def _product(node: Node, places: Places, options: ProductOptions) -> NodeCalls:
    """Return the call of an 8-bit product in the form TN, the only one of Hopper's tensor cores.

    The bias is an epilogue if there are epilogues; otherwise it is copied into the output first.
    """
    a, b, scale_a, scale_b = node.inputs[:4]
    y, bias = node.output, node.inputs[5:]
    (rows, inner), columns = a.shape, b.shape[0]
    has_epilogue = bool(bias) and options.epilogues
    first, second = (Matrix(value, value.type.dtype, 0, inner, 0) for value in (b, a))
    product = Gemm(
        True, False, columns, rows, inner,
        first, second, Matrix(y, y.type.dtype, 0, columns, 0),
        beta=float(bool(bias) and not has_epilogue), batch=1, compute=COMPUTE_32F,
        epilogue="bias" if has_epilogue else "none", bias=bias[0] if has_epilogue else None,
        factors=(scale_b, scale_a),
    )  # fmt: skip
    added = () if has_epilogue else tuple(copied(value, y, places) for value in bias)
    return NodeCalls((*added, product))


def _index(count: int) -> str:
    return "unsigned" if count < INDEX_LIMIT else "unsigned long long"
