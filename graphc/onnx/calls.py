"""What a rule sees of a node: operands that are values or known, attributes, and how to refuse."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from graphc.errors import OnnxError, quoted
from graphc.importing.weights import MOST_NUMBERS, MOST_TURNS, Array, Weight
from graphc.ir.graph import Input, Value, ancestors
from graphc.ir.types import DType, as_dtype

if TYPE_CHECKING:
    from graphc.onnx.importer import Environment, Importer

Operand = Value | Weight
"""A tensor while a network is read: computed by a step, or known now."""

Result = Operand | Sequence[Operand | None]
"""What a rule returns: the only output, or all of them."""


class UnsupportedError(OnnxError):
    """A node asks for what graphc does not have; the message says what, without the node."""


def check_turns(turns: int) -> None:
    """Raise `UnsupportedError` for more steps than are unrolled."""
    if turns > MOST_TURNS:
        raise UnsupportedError(f"more than {MOST_TURNS} turns are not unrolled, got {turns}")


def check_numbers(*shape: int) -> None:
    """Raise `UnsupportedError` for a shape whose numbers would fill memory."""
    if math.prod(shape) > MOST_NUMBERS:
        raise UnsupportedError(
            f"at most {MOST_NUMBERS} known numbers are made for a node, got {list(shape)}"
        )


class UndeterminedError(UnsupportedError):
    """A number is needed now that only a step knows; `undetermined` says from which inputs."""


@dataclass
class Call:
    """A node with its operands; missing ones at the end, or left out in between, are None."""

    node: onnx.NodeProto
    operands: list[Operand | None]
    importer: Importer
    environment: Environment
    """What is known where the node stands, for bodies that read it."""

    def __post_init__(self) -> None:
        self._attributes = {a.name: a for a in self.node.attribute}

    # --- operands ---

    def has(self, index: int) -> bool:
        """Whether there is such an operand."""
        return index < len(self.operands) and self.operands[index] is not None

    def operand(self, index: int) -> Operand:
        """An operand as it is; raises `UnsupportedError` where it is left out."""
        found = self.operands[index] if index < len(self.operands) else None
        if found is None:
            raise UnsupportedError(f"operand {index} is missing")
        return found

    def value(self, index: int) -> Value:
        """An operand as a value; what is known becomes a constant of the graph."""
        return self.importer.as_value(self.operand(index))

    def optional(self, index: int) -> Value | None:
        """An operand as a value, or None where it is left out."""
        return self.value(index) if self.has(index) else None

    @property
    def values(self) -> list[Value]:
        """All operands as values."""
        return [self.value(index) for index in range(len(self.operands))]

    def is_known(self, index: int) -> bool:
        """Whether the numbers of an operand are known now."""
        return self.has(index) and isinstance(self.operands[index], Weight)

    def known(self, index: int) -> Array:
        """The numbers of an operand; raises `UndeterminedError` where only a step has them."""
        operand = self.operand(index)
        if isinstance(operand, Weight):
            return operand.read()
        name = self.node.input[index] if index < len(self.node.input) else str(index)
        raise UndeterminedError(
            f"operand {index} ({name!r}) has to be known before a step, and is computed in it",
            inputs_of(operand),
        )

    def integers(self, index: int, default: Sequence[int] | None = None) -> list[int]:
        """The numbers of an operand of whole numbers, or `default` where it is left out."""
        if default is not None and not self.has(index):
            return list(default)
        return [int(n) for n in np.asarray(self.known(index)).reshape(-1)]

    def number(self, index: int, default: float | None = None) -> float:
        """The one number of a known operand, or `default` where it is left out."""
        if default is not None and not self.has(index):
            return default
        array = self.known(index)
        if array.size != 1:
            raise UnsupportedError(
                f"operand {index} has the shape {list(array.shape)}, not one number"
            )
        number = array.reshape(())[()]
        return int(number) if array.dtype.kind in "iub" else float(number)

    def shape(self, index: int) -> tuple[int, ...]:
        """The shape of an operand."""
        return self.operand(index).shape

    def dtype(self, index: int) -> DType:
        """The dtype of an operand; raises `DTypeError` where graphc has none."""
        operand = self.operand(index)
        return operand.type.dtype if isinstance(operand, Value) else as_dtype(operand.dtype)

    # --- attributes ---

    def attribute(self, name: str, default: Any = None) -> Any:
        """An attribute as Python has it: numbers, text, lists, arrays, or an `onnx.GraphProto`."""
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
        """An attribute that has to be there."""
        found = self.attribute(name)
        if found is None:
            raise UnsupportedError(f"the attribute {name!r} is missing")
        return found

    def choice(self, name: str, default: str, allowed: Sequence[str]) -> str:
        """An attribute that is one of some words."""
        given = self.attribute(name, default)
        if given not in allowed:
            raise UnsupportedError(f"{name} is one of {', '.join(allowed)}, got {quoted(given)}")
        return str(given)

    def axes(self, index: int = 1) -> list[int] | None:
        """Axes from an operand, or from the attribute of older versions; None for neither."""
        if self.has(index):
            return self.integers(index)
        given = self.attribute("axes")
        return None if given is None else [int(axis) for axis in given]

    # --- results ---

    def wants(self, index: int) -> bool:
        """Whether anybody reads an output."""
        return index < len(self.node.output) and bool(self.node.output[index])


def inputs_of(value: Value) -> frozenset[str]:
    """Names of the inputs that a value is computed from."""
    sources = {v for node in ancestors([value]) for v in node.inputs if v.node is None} | {value}
    return frozenset(source.name for source in sources if isinstance(source, Input))
