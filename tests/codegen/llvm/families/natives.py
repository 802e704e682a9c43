"""Nodes on their native kernels."""

from codegen.llvm.native import run
from codegen.on_cpu import places_of

from graphc.codegen.native import native_calls


def run_native(node, arrays, backwards=False):
    """Run a node's native kernels on the arrays of its values; the outputs."""
    found = native_calls(node, places_of(arrays))
    run(found.calls, arrays, found.scratch, backwards)
    return [arrays[value] for value in node.outputs]
