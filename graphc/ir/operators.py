"""Python's operators on values. `graphc.ops` registers the functions that implement them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import numpy as np

from graphc.errors import OptionError

if TYPE_CHECKING:
    from graphc.ir.graph import Value

    Operand: TypeAlias = "Value | float | np.ndarray[Any, Any]"

F = TypeVar("F", bound=Callable[..., Any])

OPERATORS: dict[Callable[..., Any], str] = {
    np.add: "+",
    np.subtract: "-",
    np.multiply: "*",
    np.divide: "/",
    np.floor_divide: "//",
    np.remainder: "%",
    np.power: "**",
    np.matmul: "@",
    np.less: "<",
    np.less_equal: "<=",
    np.greater: ">",
    np.greater_equal: ">=",
    np.bitwise_and: "&",
    np.bitwise_or: "|",
    np.bitwise_xor: "^",
    np.left_shift: "<<",
    np.right_shift: ">>",
}
"""The ufunc that a NumPy operand on the left calls for an operator → the operator."""

SYMBOLS = frozenset(OPERATORS.values())

_FUNCTIONS: dict[str, Callable[..., Any]] = {}


def operator(symbol: str) -> Callable[[F], F]:
    """Return a decorator that registers the function of an operator, for example ``+``."""

    def register(function: F) -> F:
        _FUNCTIONS[symbol] = _taking_arrays(function) if symbol in SYMBOLS else function
        return function

    return register


def _taking_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator's function, extended to convert operands that are NumPy arrays."""

    def converting(*operands: Any) -> Any:
        return function(*map(_operand, operands))

    return converting


def _operand(given: Any) -> Any:
    """Convert an array to a constant, or to a number if its shape is (); return other operands."""
    if not isinstance(given, np.ndarray):
        return given
    return _FUNCTIONS["constant"](given) if given.shape else given[()]


def function(symbol: str) -> Callable[..., Value]:
    """Return the function that implements an operator or a method."""
    return _FUNCTIONS[symbol]


class Operators:
    """Arithmetic, bits, logic, comparison, matmul and slicing.

    A number gets the dtype of the other operand. A NumPy array becomes a `graphc.constant` of its
    own dtype.

    ``==`` compares identity, because values are keys of dictionaries; `graphc.equal` compares
    elements.
    """

    __slots__ = ()

    def __add__(self, other: Operand) -> Value:
        return _FUNCTIONS["+"](self, other)  # type: ignore[no-any-return]

    def __radd__(self, other: Operand) -> Value:
        return _FUNCTIONS["+"](other, self)  # type: ignore[no-any-return]

    def __sub__(self, other: Operand) -> Value:
        return _FUNCTIONS["-"](self, other)  # type: ignore[no-any-return]

    def __rsub__(self, other: Operand) -> Value:
        return _FUNCTIONS["-"](other, self)  # type: ignore[no-any-return]

    def __mul__(self, other: Operand) -> Value:
        return _FUNCTIONS["*"](self, other)  # type: ignore[no-any-return]

    def __rmul__(self, other: Operand) -> Value:
        return _FUNCTIONS["*"](other, self)  # type: ignore[no-any-return]

    def __truediv__(self, other: Operand) -> Value:
        return _FUNCTIONS["/"](self, other)  # type: ignore[no-any-return]

    def __rtruediv__(self, other: Operand) -> Value:
        return _FUNCTIONS["/"](other, self)  # type: ignore[no-any-return]

    def __floordiv__(self, other: Operand) -> Value:
        return _FUNCTIONS["//"](self, other)  # type: ignore[no-any-return]

    def __rfloordiv__(self, other: Operand) -> Value:
        return _FUNCTIONS["//"](other, self)  # type: ignore[no-any-return]

    def __mod__(self, other: Operand) -> Value:
        return _FUNCTIONS["%"](self, other)  # type: ignore[no-any-return]

    def __rmod__(self, other: Operand) -> Value:
        return _FUNCTIONS["%"](other, self)  # type: ignore[no-any-return]

    def __divmod__(self, other: Operand) -> tuple[Value, Value]:
        return self // other, self % other

    def __rdivmod__(self, other: Operand) -> tuple[Value, Value]:
        return other // self, other % self

    def __round__(self, digits: int | None = None) -> Value:
        if digits is not None:
            raise OptionError(
                "round() supports only integers, not decimals; scale the value before and after"
            )
        return _FUNCTIONS["round"](self)  # type: ignore[no-any-return]

    def __pow__(self, other: Operand, modulus: object = None) -> Value:
        if modulus is not None:
            raise OptionError(
                "pow() of a value supports no modulus; write graphc.remainder(x ** y, modulus)"
            )
        return _FUNCTIONS["**"](self, other)  # type: ignore[no-any-return]

    def __and__(self, other: Operand) -> Value:
        return _FUNCTIONS["&"](self, other)  # type: ignore[no-any-return]

    def __rand__(self, other: Operand) -> Value:
        return _FUNCTIONS["&"](other, self)  # type: ignore[no-any-return]

    def __or__(self, other: Operand) -> Value:
        return _FUNCTIONS["|"](self, other)  # type: ignore[no-any-return]

    def __ror__(self, other: Operand) -> Value:
        return _FUNCTIONS["|"](other, self)  # type: ignore[no-any-return]

    def __xor__(self, other: Operand) -> Value:
        return _FUNCTIONS["^"](self, other)  # type: ignore[no-any-return]

    def __rxor__(self, other: Operand) -> Value:
        return _FUNCTIONS["^"](other, self)  # type: ignore[no-any-return]

    def __lshift__(self, other: Operand) -> Value:
        return _FUNCTIONS["<<"](self, other)  # type: ignore[no-any-return]

    def __rlshift__(self, other: Operand) -> Value:
        return _FUNCTIONS["<<"](other, self)  # type: ignore[no-any-return]

    def __rshift__(self, other: Operand) -> Value:
        return _FUNCTIONS[">>"](self, other)  # type: ignore[no-any-return]

    def __rrshift__(self, other: Operand) -> Value:
        return _FUNCTIONS[">>"](other, self)  # type: ignore[no-any-return]

    def __matmul__(self, other: Operand) -> Value:
        return _FUNCTIONS["@"](self, other)  # type: ignore[no-any-return]

    def __lt__(self, other: Value | float) -> Value:
        return _FUNCTIONS["<"](self, other)  # type: ignore[no-any-return]

    def __le__(self, other: Value | float) -> Value:
        return _FUNCTIONS["<="](self, other)  # type: ignore[no-any-return]

    def __gt__(self, other: Value | float) -> Value:
        return _FUNCTIONS[">"](self, other)  # type: ignore[no-any-return]

    def __ge__(self, other: Value | float) -> Value:
        return _FUNCTIONS[">="](self, other)  # type: ignore[no-any-return]

    def __rpow__(self, other: Operand) -> Value:
        return _FUNCTIONS["**"](other, self)  # type: ignore[no-any-return]

    def __rmatmul__(self, other: Operand) -> Value:
        return _FUNCTIONS["@"](other, self)  # type: ignore[no-any-return]

    def __neg__(self) -> Value:
        return _FUNCTIONS["neg"](self)  # type: ignore[no-any-return]

    def __invert__(self) -> Value:
        return _FUNCTIONS["~"](self)  # type: ignore[no-any-return]

    def __abs__(self) -> Value:
        return _FUNCTIONS["abs"](self)  # type: ignore[no-any-return]

    def __getitem__(self, index: Any) -> Value:
        return _FUNCTIONS["[]"](self, index)  # type: ignore[no-any-return]

    def __iter__(self) -> Iterator[Value]:
        raise OptionError("a value is not iterable; split it with graphc.split")

    def __float__(self) -> float:
        raise OptionError("a value has no data before a step runs; read the outputs of a step")

    def __int__(self) -> int:
        raise OptionError("a value has no data before a step runs; read the outputs of a step")

    def __bool__(self) -> bool:
        raise OptionError(
            "a value has no truth value before a step runs; select elements with graphc.where"
        )
