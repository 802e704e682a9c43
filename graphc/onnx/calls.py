"""The interface between nodes and import rules: operands, attributes and errors."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from graphc.errors import OnnxError, quoted
from graphc.importing.calls import Call, UnsupportedError
from graphc.importing.rules import Rules
from graphc.importing.weights import Array, Weight
from graphc.ir.ancestors import ancestors
from graphc.ir.graph import Input, Value
from graphc.ir.types import DType, as_dtype

Operand = Value | Weight
"""A tensor during import: either computed in each step, or known at import time."""

Result = Operand | Sequence[Operand | None]
"""The result of a rule: the only output, or a sequence of all outputs."""


class UndeterminedError(OnnxError):
    """Import needs a value that is only computed in a step.

    `undetermined` has the names of the inputs on which the value depends.
    """


@dataclass
class OnnxCall(Call):
    """A node of ONNX; its operands have positions, and its attributes are read by name."""

    node: onnx.NodeProto
    opset: int
    subgraph: Callable[[onnx.GraphProto, Mapping[str, Operand]], list[Operand]]
    """A function that imports a body, a subgraph attribute of the node, and returns its outputs.
    The body may read all tensors in scope at the node."""

    def __post_init__(self) -> None:
        self._attributes = {a.name: a for a in self.node.attribute}

    # --- operands ---

    @property
    def values(self) -> list[Value]:
        """Return all operands as values of the graph."""
        return [self.value(index) for index in self.arguments]

    def is_known(self, index: int) -> bool:
        """Return True if the operand is known at import time."""
        return self.has(index) and isinstance(self.arguments[index], Weight)

    def known(self, index: int) -> Array:
        """Return a known operand as an array; raise `UndeterminedError` if a step computes it."""
        operand = self.operand(index)
        if isinstance(operand, Weight):
            return operand.read()
        name = self.node.input[index] if index < len(self.node.input) else str(index)
        raise UndeterminedError(
            f"operand {index} ({name!r}) must be constant, but the step computes it",
            inputs_of(operand),
        )

    def integers(self, index: int, default: Sequence[int] | None = None) -> list[int]:
        """Return the elements of a known integer operand; `default` if it is omitted."""
        if default is not None and not self.has(index):
            return list(default)
        return [int(n) for n in np.asarray(self.known(index)).reshape(-1)]

    def number(self, index: int, default: float | None = None) -> float:
        """Return the single element of a known operand; `default` if it is omitted."""
        if default is not None and not self.has(index):
            return default
        array = self.known(index)
        if array.size != 1:
            raise UnsupportedError(
                f"operand {index} must be a scalar, but has the shape {list(array.shape)}"
            )
        number = array.reshape(())[()]
        return int(number) if array.dtype.kind in "iub" else float(number)

    def shape(self, index: int) -> tuple[int, ...]:
        """Return the shape of an operand."""
        found: tuple[int, ...] = self.operand(index).shape
        return found

    def dtype(self, index: int) -> DType:
        """Return the dtype of an operand; raise `DTypeError` if graphc does not support it."""
        operand = self.operand(index)
        return operand.type.dtype if isinstance(operand, Value) else as_dtype(operand.dtype)

    # --- attributes ---

    def attribute(self, name: str, default: Any = None) -> Any:
        """Return an attribute as a number, string, list, array or `onnx.GraphProto`."""
        found = self._attributes.get(name)
        if found is None:
            return default
        given = helper.get_attribute_value(found)
        if isinstance(given, bytes):
            return given.decode("utf-8", "replace")
        if isinstance(given, onnx.TensorProto):
            return numpy_helper.to_array(given)
        return list(given) if isinstance(given, Sequence) and not isinstance(given, str) else given

    def required(self, name: str) -> Any:
        """Return a required attribute; raise `UnsupportedError` if it is missing."""
        found = self.attribute(name)
        if found is None:
            raise UnsupportedError(f"the attribute {name!r} is missing")
        return found

    def choice(self, name: str, default: str, allowed: Sequence[str]) -> str:
        """Return an attribute; raise `UnsupportedError` if it is not one of `allowed`."""
        given = self.attribute(name, default)
        if given not in allowed:
            raise UnsupportedError(
                f"{name} must be one of {', '.join(allowed)}, got {quoted(given)}"
            )
        return str(given)

    def axes(self, index: int = 1) -> list[int] | None:
        """Return the axes from an operand, or from an attribute as in older versions.

        Returns None if neither is given.
        """
        if self.has(index):
            return self.integers(index)
        given = self.attribute("axes")
        return None if given is None else [int(axis) for axis in given]

    # --- results ---

    def wants(self, index: int) -> bool:
        """Return True if the node names output `index`, so that it may be used."""
        return index < len(self.node.output) and bool(self.node.output[index])


def inputs_of(value: Value) -> frozenset[str]:
    """Return the names of the inputs on which a value depends."""
    sources = {v for node in ancestors([value]) for v in node.inputs if v.node is None} | {value}
    return frozenset(source.name for source in sources if isinstance(source, Input))


RULES: Rules[OnnxCall, Result | None] = Rules("graphc.onnx.rules")
rule = RULES.rule
