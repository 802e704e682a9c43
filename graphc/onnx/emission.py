"""ONNX nodes in the making: what the rules of `graphc.onnx.exports` write into.

A rule is a function of a node of a graph, of the emission and of the ONNX names of the node's
inputs. It emits ONNX nodes and gives the names of the node's outputs, or None for one that ONNX
cannot hold. What no rule is registered for is computed by its scalar expression, if it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from onnx import NodeProto, TensorProto, helper, numpy_helper

from graphc.ir.graph import Value
from graphc.ir.op import Array
from graphc.ir.types import DType

Emitted = str | Sequence[str | None]
"""The name of a node's only output, or of its first; or one name or None an output."""

Rule = Callable[..., Emitted]
"""``rule(node, on, *names)``, with the emission and the names of the inputs."""

RULES: dict[str, Rule] = {}
"""Name of an op → its rule."""

Registered = TypeVar("Registered", bound=Rule)


def exports(*ops: str) -> Callable[[Registered], Registered]:
    """Register a rule for the ops of these names."""

    def register(rule: Registered) -> Registered:
        RULES.update(dict.fromkeys(ops, rule))
        return rule

    return register


def element_type(dtype: DType) -> int:
    """ONNX's number for a dtype."""
    return int(helper.np_dtype_to_tensor_dtype(dtype.numpy))


OPSET = 21
"""The version of ONNX's ops: the first with a norm of groups of channels."""


class Emission:
    """The nodes so far. Called with an op's type, inputs and attributes, it adds a node."""

    def __init__(self, training: bool, read: frozenset[Value]) -> None:
        self.training = training
        """Whether batch norm and dropout are written as they are in a training step."""
        self.read = read
        """Values that a node or the outputs of the graph read."""
        self.nodes: list[NodeProto] = []
        self.names: dict[Value, str] = {}
        self.scope = ""
        self.opset = OPSET
        self._numbers: dict[str, int] = {}
        self._known: dict[object, str] = {}

    def needs(self, opset: int) -> None:
        """Write the model in this version of ONNX's ops, or a later one."""
        self.opset = max(self.opset, opset)

    def name(self, wanted: str) -> str:
        """A name that nothing has yet: the one wanted, or with a number behind it."""
        name = wanted
        while name in self._numbers:
            self._numbers[wanted] += 1
            name = f"{wanted}_{self._numbers[wanted]}"
        self._numbers[name] = 0
        return name

    def __call__(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output; returns that output's name."""
        return self.several(op_type, inputs, 1, **attributes)[0]

    def several(
        self, op_type: str, inputs: Sequence[str], outputs: int, **attributes: Any
    ) -> list[str]:
        """Add a node with so many outputs; returns their names."""
        label = f"{self.scope}/{op_type}" if self.scope else op_type
        title = self.name(label)
        names = [title, *(self.name(f"{title}.{index}") for index in range(1, outputs))]
        self.nodes.append(helper.make_node(op_type, inputs, names, name=title, **attributes))
        return names

    def constant(self, array: Array) -> str:
        """A tensor that is part of the graph; equal ones are made once."""
        key = (array.dtype.str, array.dtype.name, array.shape, array.tobytes())
        if key not in self._known:
            self._known[key] = self("Constant", value=numpy_helper.from_array(array))
        return self._known[key]

    def number(self, value: float, dtype: DType) -> str:
        """A scalar."""
        return self.constant(np.array(value).astype(dtype.numpy))

    def integers(self, *numbers: int) -> str:
        """A shape, axes, or other integers in a row."""
        return self.constant(np.array(numbers, np.int64))

    def scalar_integer(self, number: int) -> str:
        """One integer of 64 bits, without an axis."""
        return self.constant(np.array(number, np.int64))

    def truth(self, value: bool) -> str:
        """One bool, without an axis."""
        return self.constant(np.array(value))

    def filled(self, shape: Sequence[int], value: float, dtype: DType) -> str:
        """A tensor of one number, which takes no room in the file."""
        if not shape:
            return self.number(value, dtype)
        content = numpy_helper.from_array(np.array([value]).astype(dtype.numpy))
        return self("ConstantOfShape", self.integers(*shape), value=content)

    def cast(self, name: str, have: DType, want: DType) -> str:
        """`name` in another dtype; itself where it has it already."""
        return name if have == want else self("Cast", name, to=element_type(want))

    def once(self, key: object, make: Callable[[], str]) -> str:
        """What does not depend on inputs, made where it is first needed."""
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def renamed(self, names: dict[str, str]) -> None:
        """Give outputs of nodes other names, wherever they stand."""
        for node in self.nodes:
            for field in (node.input, node.output):
                for index, name in enumerate(field):
                    if name in names:
                        field[index] = names[name]


def tensor_of(name: str, dtype: DType, shape: Sequence[int]) -> TensorProto:
    """A tensor of that name and type, without content."""
    return TensorProto(name=name, data_type=element_type(dtype), dims=shape)
