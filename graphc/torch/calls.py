"""What a rule sees of a node: operands by the names of torch's schema, and how to refuse."""

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
    from graphc.torch.importer import Importer

Operand: TypeAlias = Value | torch.Tensor
"""A tensor while a network is read: computed by a step, or known now."""

Number = Value | float


@dataclass(frozen=True)
class Moved:
    """What stands for a running statistic behind the norm that moves it."""

    state: State


Result: TypeAlias = Operand | Sequence[Operand | Moved | None] | None
"""What a rule returns: the only output, all of them, or None for a node that has none."""


class UnsupportedError(TorchError):
    """A node asks for what graphc does not have; the message says what, without the node."""


def check_turns(turns: int) -> None:
    """Raise `UnsupportedError` for more steps than are unrolled."""
    if turns > MOST_TURNS:
        raise UnsupportedError(f"more than {MOST_TURNS} steps are not unrolled, got {turns}")


def check_numbers(count: int) -> None:
    """Raise `UnsupportedError` for so many known numbers that they would fill memory."""
    if count > MOST_NUMBERS:
        raise UnsupportedError(
            f"at most {MOST_NUMBERS} known numbers are made for a node, got {count}"
        )


def dtype_of(dtype: torch.dtype) -> DType:
    """graphc's dtype; raises `DTypeError` where it has none."""
    return as_dtype(str(dtype).removeprefix("torch."))


def type_of(tensor: torch.Tensor) -> TensorType:
    """The type of a tensor, also of a fake one; raises `TorchError` for what graphc does not have.

    That is a symbolic extent, a tensor without elements, and a dtype such as complex64.
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
    """A node with its operands, values or known tensors, and what else it is called with."""

    node: torch.fx.Node
    arguments: Mapping[str, Any]
    """By the names of the schema, left out ones with their defaults."""
    importer: Importer

    @property
    def operator(self) -> str:
        """The name of the operator, without its overload."""
        return operator_of(self.node.target)

    # --- operands ---

    def has(self, name: str) -> bool:
        """Whether there is such an operand, and it is not None."""
        return self.arguments.get(name) is not None

    def __getitem__(self, name: str) -> Any:
        """An argument as it is: a number, a list, a dtype, or an operand."""
        return self.arguments[name]

    def get(self, name: str, default: Any = None) -> Any:
        """An argument as it is, or `default` where the overload has none or it is None."""
        found = self.arguments.get(name)
        return default if found is None else found

    def value(self, name: str) -> Value:
        """An operand as a value; what is known becomes a constant of the graph."""
        return self.as_value(self.arguments[name])

    def as_value(self, operand: Any) -> Value:
        """An operand, or a number, as a value."""
        return self.importer.as_value(operand)

    def optional(self, name: str) -> Value | None:
        """An operand as a value, or None where it is left out."""
        return self.value(name) if self.has(name) else None

    def values(self, name: str) -> list[Value]:
        """A list of operands as values."""
        return [self.as_value(each) for each in self.arguments[name]]

    def is_known(self, name: str) -> bool:
        """Whether the numbers of an operand are known now."""
        return isinstance(self.arguments.get(name), torch.Tensor)

    def axis(self, name: str = "dim", rank: int | None = None) -> int:
        """An axis, counted from the front; `rank` is by default that of ``self``."""
        rank = self.value("self").type.rank if rank is None else rank
        return normalize_axis(int(self.arguments[name]), max(rank, 1), self.operator)

    def axes(self, x: Value, name: str = "dim") -> list[int]:
        """Axes that are one number, several, or, as None or none, all of x."""
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
        """Whether anybody reads an output."""
        return any(user.args[1] == index for user in self.node.users)


def operator_of(target: Any) -> str:
    """The name of an operator: that of ATen alone, of others behind their namespace."""
    schema = getattr(target, "_schema", None)
    if schema is None:
        return str(getattr(target, "__name__", target))
    return str(schema.name).removeprefix("aten::")


def numbers_of(given: Any, count: int) -> tuple[int, ...]:
    """A number for each axis: torch gives one for all, or a list that may hold one."""
    listed = list(given) if isinstance(given, list | tuple) else [given]
    return tuple(int(n) for n in (listed * count if len(listed) == 1 else listed))
