"""Interface between nodes and rules: operands by the names of torch's schema, and refusals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from graphc.errors import TorchError
from graphc.importing.weights import MOST_NUMBERS, MOST_TURNS
from graphc.ir.graph import State, Value
from graphc.ir.types import DType, TensorType, as_dtype, normalize_axis

if TYPE_CHECKING:
    from graphc.torch.importing.importer import Importer

Operand: TypeAlias = Value | torch.Tensor
"""A tensor at import time: a value computed by a step, or a known tensor."""

Number = Value | float


@dataclass(frozen=True)
class Moved:
    """Placeholder for a running statistic after the norm that updates it."""

    state: State


Result: TypeAlias = Operand | Sequence[Operand | Moved | None] | None
"""Result of a rule: the only output, a sequence of all outputs, or None for no output."""


class UnsupportedError(TorchError):
    """A node needs an unsupported feature; the message names the feature, not the node."""


def check_turns(turns: int) -> None:
    """Raise `UnsupportedError` if a loop has more than `MOST_TURNS` iterations to unroll."""
    if turns > MOST_TURNS:
        raise UnsupportedError(f"more than {MOST_TURNS} steps are not unrolled, got {turns}")


def check_numbers(count: int) -> None:
    """Raise `UnsupportedError` if a node has more than `MOST_NUMBERS` known elements."""
    if count > MOST_NUMBERS:
        raise UnsupportedError(
            f"at most {MOST_NUMBERS} known numbers are made for a node, got {count}"
        )


def dtype_of(dtype: torch.dtype) -> DType:
    """Return graphc's dtype for a torch dtype; raises `DTypeError` if there is none."""
    return as_dtype(str(dtype).removeprefix("torch."))


def type_of(tensor: torch.Tensor) -> TensorType:
    """Return the type of a tensor, which may be fake.

    Raises `UnsupportedError` for symbolic extents and tensors without elements, and `DTypeError`
    for unsupported dtypes such as complex64.
    """
    if any(not isinstance(extent, int) for extent in tensor.shape):
        raise UnsupportedError(
            f"extents are numbers known before a step, got {[str(n) for n in tensor.shape]}"
        )
    if not all(tensor.shape):
        raise UnsupportedError(f"a tensor has elements, got the shape {list(tensor.shape)}")
    return TensorType(tuple(tensor.shape), dtype_of(tensor.dtype))


@dataclass
class Call:
    """A node with its operands (values or known tensors) and its other arguments."""

    node: torch.fx.Node
    arguments: Mapping[str, Any]
    """Arguments by the names of the schema; omitted ones have their defaults."""
    importer: Importer

    @property
    def operator(self) -> str:
        """The name of the operator, without its overload."""
        return operator_of(self.node.target)

    # --- operands ---

    def has(self, name: str) -> bool:
        """Return whether the operand exists and is not None."""
        return self.arguments.get(name) is not None

    def __getitem__(self, name: str) -> Any:
        """Return an argument unchanged: a number, a list, a dtype, or an operand."""
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """Return an argument unchanged, or `default` if it is missing or None."""
        found = self.arguments.get(name)
        return default if found is None else found

    def value(self, name: str) -> Value:
        """Return an operand as a value; a known tensor becomes a constant of the graph."""
        return self.as_value(self.arguments[name])

    def as_value(self, operand: Any) -> Value:
        """Return an operand or a number as a value."""
        return self.importer.as_value(operand)

    def optional(self, name: str) -> Value | None:
        """Return an operand as a value, or None if it is omitted."""
        return self.value(name) if self.has(name) else None

    def values(self, name: str) -> list[Value]:
        """Return a list of operands as values."""
        return [self.as_value(each) for each in self.arguments[name]]

    def is_known(self, name: str) -> bool:
        """Return whether an operand is a known tensor."""
        return isinstance(self.arguments.get(name), torch.Tensor)

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
