"""What a step calls of oneDNN for a node."""

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
    """The calls of a node on values at these addresses; None leaves the node to NumPy.

    The workspace is the caller's, and holds nothing between nodes. The calls are to be made with as
    many threads of libgomp as `threads` says, or more. Without the library, every node is left.
    """
    with _LOCK:
        return _executions(node, places, workspace_address, workspace_bytes, threads)


_LOCK = lock_across_forks()
"""Primitives are shared by all programs, and made when they are first asked for."""


def _executions(
    node: Node, places: Places, workspace_address: int, workspace_bytes: int, threads: int
) -> list[Execution] | None:
    library = load_onednn()
    if library is None:
        return None
    # Bytes before an aligned address are left out of account wherever the workspace lies, so that
    # what fits does not depend on that.
    room = max(0, workspace_bytes - ALIGNMENT)
    workspace = Workspace(align(workspace_address, ALIGNMENT), room)
    if node.op.name in PRODUCTS:
        return product_executions(library, node, places, workspace, threads)
    if isinstance(node.op, Convolution):
        return convolution_executions(library, node, places, workspace, threads)
    return None
