"""The kernels of a node, for the places of its values."""

from __future__ import annotations

from graphc.ir.graph import Node
from graphc.ir.op import Op
from graphc.ir.ops.elementwise import Elementwise
from graphc.runtime.gpu.source import elementwise_ops, line_ops
from graphc.runtime.gpu.source.dropout import dropout
from graphc.runtime.gpu.source.elementwise_ops import Places, scalar_op
from graphc.runtime.gpu.source.kernel import NodeKernels

RULES = {**elementwise_ops.RULES, **line_ops.RULES, "dropout": dropout}


def is_generated(op: Op) -> bool:
    """Whether kernels of this op can be generated."""
    return isinstance(op, Elementwise) or op.name in RULES


def kernels_of(node: Node, places: Places) -> NodeKernels:
    """The launches that compute the node's outputs from its inputs, at these places.

    Raises `NotImplementedError` for an op of which `is_generated` is false. Shapes, dtypes, strides
    and addresses modulo 16 are part of the kernels' texts, nothing else is; equal nodes at
    equal places have equal kernels.
    """
    if node.op.name in RULES:
        return RULES[node.op.name](node, places)
    if isinstance(node.op, Elementwise):
        return scalar_op(node, places)
    raise NotImplementedError(f"there is no generated kernel for {node.op.name}")
