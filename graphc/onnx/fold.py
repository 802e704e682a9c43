"""Constant folding of small nodes with known operands, at import.

Nodes are evaluated by the reference implementation of `onnx`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from graphc.errors import OnnxError
from graphc.importing.weights import Array, Weight, filled, known
from graphc.onnx.calls import Operand

FOLDED = frozenset((
    "Abs", "Add", "And", "Cast", "CastLike", "Ceil", "Concat", "ConstantOfShape", "CumSum",
    "Div", "Equal", "Expand", "Flatten", "Floor", "Gather", "GatherElements", "GatherND",
    "Greater", "GreaterOrEqual", "Identity", "Less", "LessOrEqual", "Max", "Min", "Mod",
    "Mul", "Neg", "Not", "Or", "Pow", "Range", "Reciprocal", "ReduceMax", "ReduceMin",
    "ReduceProd", "ReduceSum", "Reshape", "Round", "ScatterElements", "ScatterND", "Shape",
    "Sign", "Size", "Slice", "Split", "Sqrt", "Squeeze", "Sub", "Tile", "Transpose",
    "Trilu", "Unsqueeze", "Where", "Xor",
))  # fmt: skip
"""Foldable operators, mainly of shape and index arithmetic that exporters leave in graphs."""

MOST_ELEMENTS = 2**16
"""Operands with more elements are not folded, so that imports stay fast."""


def is_folded(node: onnx.NodeProto) -> bool:
    """Return True if a node can be folded as soon as all its operands are known."""
    is_standard = node.domain in ("", "ai.onnx")
    return is_standard and node.op_type in FOLDED and bool(node.input)


def folded(
    node: onnx.NodeProto, operands: Sequence[Operand | None], opset: int
) -> list[Weight] | None:
    """Return the outputs of a node whose operands are known, computed at import.

    Returns None if a step has to compute the node.
    """
    if not is_folded(node):
        return None
    tensors = [o for o in operands if isinstance(o, Weight)]
    if len(tensors) != sum(1 for operand in operands if operand is not None):
        return None
    if any(tensor.elements > MOST_ELEMENTS for tensor in tensors):
        return None
    arrays = {
        name: operand.read()
        for name, operand in zip(node.input, operands, strict=False)
        if isinstance(operand, Weight)
    }
    if node.op_type in ("ConstantOfShape", "Expand", "Tile", "Range"):
        return _extended(node, arrays, opset)
    return _evaluated(node, arrays, opset)


def _evaluated(
    node: onnx.NodeProto, arrays: Mapping[str, Array], opset: int
) -> list[Weight] | None:
    evaluator = ReferenceEvaluator(node, opsets={"": opset})
    found = evaluator.run(None, dict(arrays))
    names = [name for name in node.output if name]
    return [known(name, np.asarray(array)) for name, array in zip(names, found, strict=True)]


def _extended(node: onnx.NodeProto, named: Mapping[str, Array], opset: int) -> list[Weight] | None:
    """Fold an op that enlarges its operand, using broadcast views if possible.

    Returns None if the result would be too large.
    """
    arrays = [named[name] for name in node.input if name in named]
    first = arrays[0]
    if node.op_type == "Range":
        start, limit, step = (array.reshape(()).item() for array in arrays)
        if not step:
            raise OnnxError("the step of a Range must not be 0")
        if math.ceil((limit - start) / step) > MOST_ELEMENTS:
            return None
    elif node.op_type == "Tile":
        if first.size * math.prod(int(n) for n in arrays[1].reshape(-1)) > MOST_ELEMENTS:
            return None
    elif node.op_type == "Expand":
        shape = np.broadcast_shapes(first.shape, tuple(int(n) for n in arrays[1].reshape(-1)))
        return [known(node.output[0], np.broadcast_to(first, shape))]
    else:
        return [_fill(node, tuple(int(n) for n in first.reshape(-1)))]
    return _evaluated(node, named, opset)


def _fill(node: onnx.NodeProto, shape: tuple[int, ...]) -> Weight:
    if any(extent < 0 for extent in shape):
        raise OnnxError(
            f"ConstantOfShape cannot have the shape {list(shape)}; extents must be at least 0"
        )
    number: Array = np.zeros(1, np.float32)
    for attribute in node.attribute:
        if attribute.name == "value":
            number = onnx.numpy_helper.to_array(attribute.t)
    return filled(node.output[0], shape, number.reshape(()), number.dtype)
