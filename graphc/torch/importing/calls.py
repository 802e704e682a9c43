"""Interface between nodes and rules: operands by the names of torch's schema, and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch

from graphc.importing.calls import Call, UnsupportedError
from graphc.importing.rules import Rules
from graphc.ir.graph import State, Value
from graphc.ir.types import DType, TensorType, as_dtype, normalize_axis

Operand: TypeAlias = Value | torch.Tensor
"""A tensor at import time: a value computed by a step, or a known tensor."""

Number = Value | float


@dataclass(frozen=True)
class Moved:
    """Placeholder for a running statistic after the norm that updates it."""

    state: State


Result: TypeAlias = Operand | Sequence[Operand | Moved | None] | None
"""Result of a rule: the only output, a sequence of all outputs, or None for no output."""


def dtype_of(dtype: torch.dtype) -> DType:
    """Return graphc's dtype for a torch dtype; raises `DTypeError` if graphc has no such dtype."""
    return as_dtype(str(dtype).removeprefix("torch."))


def type_of(tensor: torch.Tensor) -> TensorType:
    """Return the type of a tensor, which may be fake.

    Raises `UnsupportedError` for symbolic extents and tensors without elements, and `DTypeError`
    for unsupported dtypes such as complex64.
    """
    if any(not isinstance(extent, int) for extent in tensor.shape):
        raise UnsupportedError(f"extents must be constant, got {[str(n) for n in tensor.shape]}")
    if not all(tensor.shape):
        raise UnsupportedError(
            f"empty tensors are not supported, got the shape {list(tensor.shape)}"
        )
    return TensorType(tuple(tensor.shape), dtype_of(tensor.dtype))


@dataclass
class TorchCall(Call):
    """A node of an exported graph; its arguments have the names and defaults of the schema."""

    node: torch.fx.Node

    # --- operands ---

    def __getitem__(self, name: str) -> Any:
        """Return an argument unchanged: a number, a list, a dtype, or an operand."""
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument unchanged, or `default` if it is missing or None."""
        found = self.arguments.get(name)
        return default if found is None else found

    def values(self, name: str) -> list[Value]:
        """Return a list of operands as values."""
        return [self.as_value(each) for each in self.arguments[name]]

    def axis(self, name: str = "dim", rank: int | None = None) -> int:
        """Return a nonnegative axis; `rank` defaults to the rank of ``self``."""
        rank = self.value("self").type.rank if rank is None else rank
        return normalize_axis(int(self.arguments[name]), max(rank, 1), self.operator)

    def axes(self, x: Value, name: str = "dim") -> list[int]:
        """Return axes given as one number or several; None or an empty list means all of x."""
        given = self.arguments.get(name)
        if given is None or given == []:
            return list(range(x.type.rank))
        listed = given if isinstance(given, list | tuple) else [given]
        return sorted(
            normalize_axis(int(axis), max(x.type.rank, 1), self.operator) for axis in listed
        )

    # --- results ---

    @property
    def type(self) -> TensorType:
        """The type of the first output in torch."""
        found = self.node.meta["val"]
        return type_of(found if isinstance(found, torch.Tensor) else found[0])

    @property
    def shape(self) -> tuple[int, ...]:
        return self.type.shape

    @property
    def dtype(self) -> DType:
        return self.type.dtype

    def wants(self, index: int) -> bool:
        """Return whether an output has a use."""
        return any(user.args[1] == index for user in self.node.users)


def operator_of(target: Any) -> str:
    """Return the name of an operator, with its namespace unless that is ATen."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return str(getattr(target, "__name__", target))
    return str(schema.name).removeprefix("aten::")


def numbers_of(given: Any, count: int) -> tuple[int, ...]:
    """Return one number per axis, from one number for all axes or a list of one or more."""
    listed = list(given) if isinstance(given, list | tuple) else [given]
    return tuple(int(n) for n in (listed * count if len(listed) == 1 else listed))


RULES: Rules[TorchCall, Result] = Rules("graphc.torch.importing.rules")
"""Rules by the names of operators; each applies to all overloads."""

rule = RULES.rule
