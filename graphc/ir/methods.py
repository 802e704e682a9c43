"""Methods of values: what NumPy's arrays have too, and errors that name the function to call.

A method is a public function with the value as its first argument; the functions come from
`graphc.ops`, by `graphc.ir.operators.operator`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from graphc.errors import OptionError, UnknownAttributeError, did_you_mean
from graphc.ir.operators import function
from graphc.keywords import also_called

if TYPE_CHECKING:
    from graphc.ir.graph import Value

Axes = int | Sequence[int] | None

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
"""What NumPy calls for an operator between one of its numbers and a value."""

ELSEWHERE = {
    "absolute": "abs",
    "bmm": "matmul",
    "clamp": "clip",
    "concatenate": "concat",
    "dot": "matmul",
    "expand": "broadcast_to",
    "flip": "reverse",
    "matmul": "matmul",
    "mm": "matmul",
    "multiply": "mul",
    "divide": "div",
    "negative": "neg",
    "permute": "transpose",
    "pow": "power",
    "subtract": "sub",
    "swapaxes": "transpose",
    "to": "cast",
    "type": "cast",
    "float": "cast",
    "half": "cast",
    "double": "cast",
    "int": "cast",
    "long": "cast",
    "unsqueeze": "reshape",
    "squeeze": "reshape",
    "expand_dims": "reshape",
    "ravel": "reshape",
    "argsort": "sort",
    "topk": "top_k",
    "take_along_axis": "gather_elements",
    "index_select": "take",
    "amax": "max",
    "amin": "min",
    "fabs": "abs",
    "chunk": "split",
    "detach": "stop_gradient",
    "view": "reshape",
}
"""Names of NumPy and PyTorch → the function of graphc that does it."""

NUMBERS = ("numpy", "item", "tolist", "data", "cpu", "grad", "backward", "array", "asarray")
"""What is asked of a tensor that has numbers."""

_public: list[str] = []


def public_functions(names: Mapping[str, object]) -> None:
    """Enter the public functions of values, which errors about missing methods name."""
    _public.extend(
        name
        for name, found in names.items()
        if isinstance(found, FunctionType) and found.__module__.startswith("graphc.ops.")
    )


class Methods:
    """Methods of a value; axes are counted as in the functions of their names.

    Methods and functions that reduce take `axis` and `axes` alike; `argmax` and `argmin`, which are
    functions alone, take one `axis`.
    """

    __slots__ = ()

    @property
    def T(self) -> Value:  # noqa: N802 - NumPy's name
        """Its axes in the other order: a view."""
        return function("transpose")(self)

    def reshape(self, *shape: int | Sequence[int]) -> Value:
        """`graphc.reshape`; the shape as one sequence or as several numbers."""
        return function("reshape")(self, _together(shape))

    def transpose(self, *permutation: int | Sequence[int] | None) -> Value:
        """`graphc.transpose`; the axes as one sequence or as several numbers."""
        return function("transpose")(self, _together(permutation) if permutation else None)

    def flatten(self) -> Value:
        """All elements along one axis: a view."""
        return function("reshape")(self, (-1,))

    @also_called("axis", "axes")
    def sum(self, axis: Axes = None, keepdims: bool = False) -> Value:
        """`graphc.sum`."""
        return function("sum")(self, axis, keepdims)

    @also_called("axis", "axes")
    def mean(self, axis: Axes = None, keepdims: bool = False) -> Value:
        """`graphc.mean`."""
        return function("mean")(self, axis, keepdims)

    @also_called("axis", "axes")
    def max(self, axis: Axes = None, keepdims: bool = False) -> Value:
        """`graphc.max`."""
        return function("max")(self, axis, keepdims)

    @also_called("axis", "axes")
    def min(self, axis: Axes = None, keepdims: bool = False) -> Value:
        """`graphc.min`."""
        return function("min")(self, axis, keepdims)

    def astype(self, dtype: object) -> Value:
        """`graphc.cast`."""
        return function("cast")(self, dtype)

    def cast(self, dtype: object) -> Value:
        """`graphc.cast`."""
        return function("cast")(self, dtype)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # what copying, printing and NumPy ask every object for
            raise AttributeError(name)
        raise UnknownAttributeError(f"a value has no attribute {name!r}{_cure(name)}")

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise OptionError(
            "a value has no numbers before a step runs, so it cannot become an array; a step's "
            "outputs are arrays, and graphc.constant makes a value of an array"
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, **named: Any) -> Any:
        if ufunc in (np.equal, np.not_equal):  # == stays identity, also beside NumPy's numbers
            return ufunc is np.not_equal
        if ufunc in OPERATORS and method == "__call__" and not named:
            numbers = (a[()] if isinstance(a, np.ndarray) and a.shape == () else a for a in given)
            return function(OPERATORS[ufunc])(*numbers)
        return self.__array_function__(ufunc)

    def __array_function__(self, called: Any, *_: object) -> NoReturn:
        name = str(getattr(called, "__name__", called))
        raise OptionError(f"numpy.{name} takes arrays, got a graphc value{_cure(name)}")


def _together(given: tuple[Any, ...]) -> Any:
    """Several numbers as one sequence; one sequence as it is."""
    is_sequence = len(given) == 1 and not isinstance(given[0], int | np.integer)
    return given[0] if is_sequence else given


@functools.lru_cache(256)  # a missing name may be asked for of every value of a network
def _cure(name: str) -> str:
    """What to write in place of a method or function of that name."""
    if name in NUMBERS:
        return "; it has no numbers before a step runs, and a step gives those of its outputs"
    found = name if name in _public else ELSEWHERE.get(name, "")
    if found in _public:
        return f"; write graphc.{found}(x, ...)"
    methods = [known for known in dir(Methods) if not known.startswith("_")]
    return did_you_mean(name, dict.fromkeys([*methods, *_public]), before="; ")
