"""Kernels in which one thread computes one item, in a grid-stride loop."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.codegen.node_calls import Argument, Launch
from graphc.codegen.text.access import indented
from graphc.codegen.text.kernel import ENTRY, Kernel, named

WARP = 32
"""Number of threads of a warp, which run in lockstep and exchange numbers without a barrier."""

BLOCK = 256
"""The default number of threads per block."""

GRID_LIMIT = 4096
"""Maximum number of blocks. More do not make a device busier, so threads process several items."""


def grid_kernel(
    op: str, items: int, index: str, parameters: str, body: Sequence[str], item: str = "item"
) -> Kernel:
    """Return a kernel that runs `body` for each item; the variable `item` holds its number.

    `index` is the C++ type of offsets.
    """
    text = (
        f'extern "C" __global__ void {ENTRY}({parameters}) {{\n'
        f"    using Index = {index};\n"
        "    const Index threads = Index(gridDim.x) * blockDim.x;\n"
        f"    Index {item} = Index(blockIdx.x) * blockDim.x + threadIdx.x;\n"
        f"    for (; {item} < {items}u; {item} += threads) {{\n{indented(body, 2)}\n    }}\n}}\n"
    )
    return named(op, text)


def over_grid(kernel: Kernel, arguments: tuple[Argument, ...], items: int) -> Launch:
    """Return a launch of a grid kernel."""
    return Launch(kernel, arguments, min(GRID_LIMIT, -(-items // BLOCK)), BLOCK)
