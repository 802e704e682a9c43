"""Classification of a file's tensors as trainable or fixed, by the operators that use them.

Uses through views count, too.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

import onnx

from graphc.importing.roles import Role, chosen_names
from graphc.importing.weights import Weight
from graphc.ir.names import is_constant_name
from graphc.onnx.model import Model

LAYERS: Mapping[str, tuple[int, ...]] = {
    "BatchNormalization": (1, 2),
    "Conv": (1, 2),
    "ConvTranspose": (1, 2),
    "DeformConv": (1, 3),
    "Einsum": (0, 1, 2),
    "GRU": (1, 2, 3),
    "Gather": (0,),
    "Gemm": (0, 1, 2),
    "GroupNormalization": (1, 2),
    "InstanceNormalization": (1, 2),
    "LSTM": (1, 2, 3, 7),
    "LayerNormalization": (1, 2),
    "MatMul": (0, 1),
    "PRelu": (1,),
    "RMSNormalization": (1,),
    "RNN": (1, 2, 3),
}
"""Operator → the indices of its operands that are weights."""

ARITHMETIC = ("Add", "Div", "Mul", "Sub")
"""Operators whose operands are weights if they are tensors of the file with several elements."""

PASSING = (
    "Cast", "Concat", "Expand", "Flatten", "Identity", "Reshape", "Slice", "Split", "Squeeze",
    "Transpose", "Unsqueeze",
)  # fmt: skip
"""Operators that only pass weights on: the uses of their results count as uses of the weights."""


@dataclass(frozen=True)
class _Reader:
    """A use of a tensor: a node and the index of the operand."""

    node: onnx.NodeProto
    operand: int

    def __str__(self) -> str:
        return f"{self.node.op_type} {self.node.name!r}" if self.node.name else self.node.op_type


def roles(model: Model, trainable: bool | str | Collection[str] | None) -> dict[str, Role]:
    """Return the role of each tensor.

    Raises `OptionError` if `trainable` matches no tensor.
    """
    readers: dict[str, list[_Reader]] = {}
    makers: dict[str, str] = {}
    for node in _nodes(model.graph):
        for operand, name in enumerate(node.input):
            readers.setdefault(name, []).append(_Reader(node, operand))
        makers.update((name, node.op_type) for name in node.output)
    chosen = chosen_names(trainable, model.weights)
    return {
        name: _role(name, weight, model, readers, makers).with_choice(weight, chosen)
        for name, weight in model.weights.items()
    }


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """Yield all nodes; the nodes of a subgraph follow the node that contains it."""
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            if attribute.HasField("g"):
                yield from _nodes(attribute.g)


def _role(
    name: str,
    weight: Weight,
    model: Model,
    readers: Mapping[str, list[_Reader]],
    makers: Mapping[str, str],
) -> Role:
    if weight.dtype.kind in "biuSO":
        return Role("constant", f"numbers of {weight.dtype}", False)
    if not weight.shape:
        return Role("constant", "a scalar", False)
    if is_constant_name(name):
        return Role("constant", "a constant of graphc", False)
    found = list(_through_views(name, readers))
    for reader in found:
        if reader.node.op_type == "BatchNormalization" and reader.operand in (3, 4):
            return Role("statistic", f"running statistic of {reader}", False)
    for reader in found:
        if reader.operand in LAYERS.get(reader.node.op_type, ()):
            return Role("parameter", f"weight of {reader}", True)
    if name not in model.from_nodes:
        for reader in found:
            if reader.node.op_type in ARITHMETIC and _learns(reader, weight, makers):
                return Role("parameter", f"operand of {reader}", True)
    where = f"used only by {found[0]}" if found else "used by no operator"
    return Role("constant", where, False)


def _learns(reader: _Reader, weight: Weight, makers: Mapping[str, str]) -> bool:
    """Return True if a tensor counts as a weight because this sum or product uses it.

    A single element counts only if it is added to the result of a MatMul.
    """
    if weight.elements > 1:
        return True
    other = reader.node.input[1 - reader.operand] if len(reader.node.input) == 2 else ""
    return reader.node.op_type == "Add" and makers.get(other) == "MatMul"


def _through_views(name: str, readers: Mapping[str, list[_Reader]]) -> Iterator[_Reader]:
    """Yield the uses of a tensor's elements, including uses through views."""
    seen, pending = {name}, [name]
    while pending:
        for reader in readers.get(pending.pop(), ()):
            yield reader
            passes = reader.operand == 0 or reader.node.op_type == "Concat"
            if reader.node.op_type in PASSING and passes:
                fresh = [output for output in reader.node.output if output not in seen]
                seen.update(fresh)
                pending += fresh
