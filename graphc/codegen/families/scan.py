"""Running sums along lines: a team of threads per line, each thread with consecutive elements.

Each thread first adds up its own elements. In a second pass over them it starts from the sums
of the preceding threads. The size of a team depends only on the length of a line, and so does
the order of additions. A thread reads an element before it writes the same one, so y may
overwrite x.
"""

from __future__ import annotations

from graphc.codegen.node_calls import Launch, NodeCalls
from graphc.codegen.rules import kernels_of
from graphc.codegen.text.access import indented, parameters
from graphc.codegen.text.grid import BLOCK
from graphc.codegen.text.kernel import ENTRY, named
from graphc.codegen.text.operands import Places, decompose, index_type, offset, operand
from graphc.codegen.text.scalar import C_TYPES, arithmetic_dtype
from graphc.ir.graph import Node

SHARE = 16
"""Minimum number of elements per thread of a long line."""


def _team(length: int) -> int:
    """Return the number of threads for a line of that length, a power of two."""
    return min(BLOCK, 1 << (max(1, length // SHARE) - 1).bit_length())


@kernels_of("cumsum")
def _cumsum(node: Node, places: Places) -> NodeCalls:
    (x,), y, a = node.inputs, node.output, node.attributes
    length = x.shape[a.axis]
    team = _team(length)
    share, lines = -(-length // team), x.type.elements // length
    source, target = (operand(n, v, places[v], x.shape) for n, v in (("x", x), ("y", y)))
    others = (*x.shape[: a.axis], *x.shape[a.axis + 1 :])
    split, indices = decompose("line", others, "i")
    begins = [
        f"const Index {o.name}_line = "
        f"{offset(indices, (*o.strides[: a.axis], *o.strides[a.axis + 1 :]))};"
        for o in (source, target)
    ]
    place = f"({length - 1}u - i)" if a.reverse else "i"
    read = f"widen(x[x_line + {place} * {source.strides[a.axis]}u])"
    write = f"narrow(total, y[y_line + {place} * {target.strides[a.axis]}u]);"
    step = "total = add(total, own);"
    kind = C_TYPES[arithmetic_dtype(x.type.dtype)]
    body = [
        f"using Index = {index_type(x.shape, [source, target])};",
        f"__shared__ {kind} sums[{BLOCK}];",
        f"const Index number = Index(blockIdx.x) * {BLOCK // team}u + threadIdx.x / {team}u;",
        f"const Index rank = threadIdx.x % {team}u;",
        f"const bool exists = number < {lines}u;",
        "const Index line = exists ? number : 0u;",
        *split,
        *begins,
        f"const Index first = rank * {share}u;",
        f"const Index end = first + {share}u;",
        f"const Index last = !exists ? 0u : end < {length}u ? end : {length}u;",
        f"{kind} total = 0;",
        f"for (Index i = first; i < last; ++i) total = add(total, {read});",
        "sums[threadIdx.x] = total;",
        "__syncthreads();",
        "total = 0;",
        "for (Index i = threadIdx.x - rank; i < threadIdx.x; ++i) total = add(total, sums[i]);",
        "for (Index i = first; i < last; ++i) {",
        f"    const {kind} own = {read};",
        *(f"    {line}" for line in ((write, step) if a.exclusive else (step, write))),
        "}",
    ]
    text = (
        f'extern "C" __global__ void {ENTRY}({parameters([source], [target])}) {{\n'
        f"{indented(body, 1)}\n}}\n"
    )
    grid = -(-lines // (BLOCK // team))
    return NodeCalls((Launch(named("cumsum", text), (x, y), grid, BLOCK),))
