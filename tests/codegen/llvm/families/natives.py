"""Nodes on their native kernels."""

from codegen.llvm.native import run
from codegen.on_cpu import places_of

from graphc.codegen.llvm.families import FAMILIES
from graphc.codegen.llvm.rules import native_rule_of

assert FAMILIES, "their import registers the rules"


def run_native(node, arrays, backwards=False):
    """Run a node's native kernels on the arrays of its values; the outputs."""
    found = native_rule_of(node.op)(node, places_of(arrays))
    run(found.calls, arrays, found.scratch, backwards)
    return [arrays[value] for value in node.outputs]
