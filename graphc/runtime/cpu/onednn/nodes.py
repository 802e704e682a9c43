"""The oneDNN calls of a node."""

from __future__ import annotations

from graphc.codegen.products.ops import PRODUCTS
from graphc.codegen.text.operands import Places
from graphc.forks import lock_across_forks
from graphc.ir.graph import Node
from graphc.ir.types import align
from graphc.ops.conv import Convolution
from graphc.runtime.cpu.onednn.convolutions import convolution_executions
from graphc.runtime.cpu.onednn.library import load_onednn
from graphc.runtime.cpu.onednn.primitive import ALIGNMENT, Execution, Workspace
from graphc.runtime.cpu.onednn.products import product_executions


def executions(
    node: Node, places: Places, workspace_address: int, workspace_bytes: int, threads: int
) -> list[Execution] | None:
    """Return the oneDNN calls of a node; None if the node has to run by NumPy.

    `places` has the addresses and strides of values.

    The caller provides the workspace, whose contents are not kept between nodes. The calls must run
    with at least `threads` threads of libgomp. Without the library, the result is always None.
    """
    with _LOCK:
        return _executions(node, places, workspace_address, workspace_bytes, threads)


_LOCK = lock_across_forks()
"""A lock on the primitives, which are shared by all programs and created when first used."""


def _executions(
    node: Node, places: Places, workspace_address: int, workspace_bytes: int, threads: int
) -> list[Execution] | None:
    library = load_onednn()
    if library is None:
        return None
    # The loss by alignment is always subtracted, even at an aligned address. Whether a primitive
    # fits therefore does not depend on the address of the workspace.
    scratch = max(0, workspace_bytes - ALIGNMENT)
    workspace = Workspace(align(workspace_address, ALIGNMENT), scratch)
    if node.op.name in PRODUCTS:
        return product_executions(library, node, places, workspace, threads)
    if isinstance(node.op, Convolution):
        return convolution_executions(library, node, places, workspace, threads)
    return None
