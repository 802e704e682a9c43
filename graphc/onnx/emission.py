"""A builder of ONNX nodes, used by the export rules of `graphc.onnx.exports`.

A rule is a function of a graph node, the emission and the ONNX names of the node's inputs. It emits
ONNX nodes and returns the names of the node's outputs, or None for an output that ONNX cannot
represent. An op without a rule is exported by its scalar expression, if it has one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np
from onnx import NodeProto, helper, numpy_helper

from graphc.ir.graph import Value
from graphc.ir.op import Array
from graphc.ir.types import DType

Emitted = str | Sequence[str | None]
"""The result of an export rule: the name of the only output, or a sequence with a name or None for
each output."""

Rule = Callable[..., Emitted]
"""``rule(node, on, *names)``: `node` is the graph node, `on` the emission to which ONNX nodes are
added, and `names` are the ONNX names of the inputs."""

RULES: dict[str, Rule] = {}
"""Op name → its export rule."""

Registered = TypeVar("Registered", bound=Rule)


def exports(*ops: str) -> Callable[[Registered], Registered]:
    """Register a rule for the ops of these names."""

    def register(rule: Registered) -> Registered:
        RULES.update(dict.fromkeys(ops, rule))
        return rule

    return register


def element_type(dtype: DType) -> int:
    """Return the ONNX element type of a dtype."""
    return int(helper.np_dtype_to_tensor_dtype(dtype.numpy))


OPSET = 21
"""The minimum opset version of written files: the first with a group norm of per-channel scales."""


class Emission:
    """A list of ONNX nodes under construction.

    Calling it with an op type, inputs and attributes appends a node.
    """

    def __init__(self, training: bool, read: frozenset[Value]) -> None:
        self.training = training
        """True if batch norm and dropout are written as in a training step."""
        self.read = read
        """Values that are read by nodes or are outputs of the graph."""
        self.nodes: list[NodeProto] = []
        self.names: dict[Value, str] = {}
        self.scope = ""
        self.opset = OPSET
        self._numbers: dict[str, int] = {}
        self._known: dict[object, str] = {}

    def needs(self, opset: int) -> None:
        """Raise the opset version of the file to at least `opset`."""
        self.opset = max(self.opset, opset)

    def name(self, wanted: str) -> str:
        """Return a unique name: `wanted`, with a numeric suffix if it is taken."""
        name = wanted
        while name in self._numbers:
            self._numbers[wanted] += 1
            name = f"{wanted}_{self._numbers[wanted]}"
        self._numbers[name] = 0
        return name

    def __call__(self, op_type: str, *inputs: str, **attributes: Any) -> str:
        """Add a node with one output and return the output's name."""
        return self.several(op_type, inputs, 1, **attributes)[0]

    def several(
        self, op_type: str, inputs: Sequence[str], outputs: int, **attributes: Any
    ) -> list[str]:
        """Add a node with `outputs` outputs and return their names."""
        label = f"{self.scope}/{op_type}" if self.scope else op_type
        title = self.name(label)
        names = [title, *(self.name(f"{title}.{index}") for index in range(1, outputs))]
        self.nodes.append(helper.make_node(op_type, inputs, names, name=title, **attributes))
        return names

    def constant(self, array: Array) -> str:
        """Add a constant tensor and return its name; equal constants share one node."""
        key = (array.dtype.str, array.dtype.name, array.shape, array.tobytes())
        if key not in self._known:
            self._known[key] = self("Constant", value=numpy_helper.from_array(array))
        return self._known[key]

    def number(self, value: float, dtype: DType) -> str:
        """Add a scalar constant and return its name."""
        return self.constant(np.array(value).astype(dtype.numpy))

    def integers(self, *numbers: int) -> str:
        """Add a constant vector of 64-bit integers, such as a shape, and return its name."""
        return self.constant(np.array(numbers, np.int64))

    def scalar_integer(self, number: int) -> str:
        """Add a constant scalar 64-bit integer and return its name."""
        return self.constant(np.array(number, np.int64))

    def truth(self, value: bool) -> str:
        """Add a constant scalar bool and return its name."""
        return self.constant(np.array(value))

    def filled(self, shape: Sequence[int], value: float, dtype: DType) -> str:
        """Add a tensor filled with one number and return its name.

        The file stores the tensor as a scalar.
        """
        if not shape:
            return self.number(value, dtype)
        content = numpy_helper.from_array(np.array([value]).astype(dtype.numpy))
        return self("ConstantOfShape", self.integers(*shape), value=content)

    def cast(self, name: str, have: DType, want: DType) -> str:
        """Cast a tensor from dtype `have` to `want` and return the result's name.

        If both are equal, no node is added and `name` is returned.
        """
        return name if have == want else self("Cast", name, to=element_type(want))

    def once(self, key: object, make: Callable[[], str]) -> str:
        """Return the name of a tensor that does not depend on inputs.

        `make` emits it at the first call with this `key`.
        """
        if key not in self._known:
            self._known[key] = make()
        return self._known[key]

    def renamed(self, names: dict[str, str]) -> None:
        """Rename tensors in the inputs and outputs of all nodes."""
        for node in self.nodes:
            for field in (node.input, node.output):
                for index, name in enumerate(field):
                    if name in names:
                        field[index] = names[name]
