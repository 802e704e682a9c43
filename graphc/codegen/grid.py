"""Kernels in which one thread computes one item, in a loop over the whole grid."""

from __future__ import annotations

from collections.abc import Sequence

from graphc.codegen.access import indented
from graphc.codegen.calls import Argument, Launch
from graphc.codegen.elementwise import BLOCK, GRID_LIMIT
from graphc.codegen.kernel import ENTRY, Kernel, named


def grid_kernel(op: str, items: int, index: str, parameters: str, body: Sequence[str]) -> Kernel:
    """A kernel that runs `body` for each `item` of so many; `index` is the C++ type of offsets."""
    text = (
        f'extern "C" __global__ void {ENTRY}({parameters}) {{\n'
        f"    using Index = {index};\n"
        "    const Index threads = Index(gridDim.x) * blockDim.x;\n"
        "    Index item = Index(blockIdx.x) * blockDim.x + threadIdx.x;\n"
        f"    for (; item < {items}u; item += threads) {{\n{indented(body, 2)}\n    }}\n}}\n"
    )
    return named(op, text)


def over_grid(kernel: Kernel, arguments: tuple[Argument, ...], items: int) -> Launch:
    """A launch of such a kernel."""
    return Launch(kernel, arguments, min(GRID_LIMIT, -(-items // BLOCK)), BLOCK)
