"""Methods of values that NumPy arrays also have, and errors for other methods, with an alternative.

A method is a public function with the value as its first argument. The functions are registered in
`graphc.ops` by `graphc.ir.operators.operator`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any, NoReturn

import numpy as np

from graphc.errors import OptionError, UnknownAttributeError, did_you_mean
from graphc.ir.operators import OPERATORS, function
from graphc.keywords import also_called

if TYPE_CHECKING:
    from graphc.ir.graph import Value

Axes = int | Sequence[int] | None

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
    "ravel": "flatten",
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
"""Names in NumPy and PyTorch → the graphc function that does the same."""

NUMBERS = ("numpy", "item", "tolist", "data", "cpu", "grad", "backward", "array", "asarray")
"""Attributes of arrays and tensors that need data, which values do not have."""

_public: list[str] = []


def public_functions(names: Mapping[str, object]) -> None:
    """Register the names of public functions, which errors about missing methods suggest."""
    _public.extend(
        name
        for name, found in names.items()
        if isinstance(found, FunctionType) and found.__module__.startswith("graphc.ops.")
    )


class Methods:
    """Methods of a value; axes are counted as in the functions of the same names.

    Reductions, as methods and as functions, accept both `axis` and `axes`. `argmax` and `argmin`
    are only functions and accept one `axis`.
    """

    __slots__ = ()

    @property
    def T(self) -> Value:  # noqa: N802 - NumPy's name
        """The value with its axes reversed: a view."""
        return function("transpose")(self)

    def reshape(self, *shape: int | Sequence[int]) -> Value:
        """Call `graphc.reshape`; the shape is one sequence or several numbers."""
        return function("reshape")(self, _together(shape))

    def transpose(self, *permutation: int | Sequence[int] | None) -> Value:
        """Call `graphc.transpose`; the axes are one sequence or several numbers."""
        return function("transpose")(self, _together(permutation) if permutation else None)

    def flatten(self, start_axis: int = 0) -> Value:
        """Call `graphc.flatten`, by default of all axes, as NumPy's method does."""
        return function("flatten")(self, start_axis)

    @also_called("axis", "axes")
    def sum(self, axis: Axes = None, keepdims: bool = False) -> Value:
        """Call `graphc.sum`."""
        return function("sum")(self, axis, keepdims)

    @also_called("axis", "axes")
    def mean(self, axis: Axes = None, keepdims: bool = False) -> Value:
        """Call `graphc.mean`."""
        return function("mean")(self, axis, keepdims)

    @also_called("axis", "axes")
    def max(self, axis: Axes = None, keepdims: bool = False) -> Value:
        """Call `graphc.max`."""
        return function("max")(self, axis, keepdims)

    @also_called("axis", "axes")
    def min(self, axis: Axes = None, keepdims: bool = False) -> Value:
        """Call `graphc.min`."""
        return function("min")(self, axis, keepdims)

    def astype(self, dtype: object) -> Value:
        """Call `graphc.cast`."""
        return function("cast")(self, dtype)

    def cast(self, dtype: object) -> Value:
        """Call `graphc.cast`."""
        return function("cast")(self, dtype)

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):  # looked up by copying, printing and NumPy
            raise AttributeError(name)
        raise UnknownAttributeError(f"a value has no attribute {name!r}{_cure(name)}")

    def __array__(self, *_: object, **__: object) -> NoReturn:
        raise OptionError(
            "a value has no data before a step runs, so it cannot be converted to an array; use "
            "the outputs of a step, or convert an array to a value with graphc.constant"
        )

    def __array_ufunc__(self, ufunc: Any, method: str, *given: Any, **named: Any) -> Any:
        if ufunc in (np.equal, np.not_equal):  # == is identity, also with NumPy numbers
            return ufunc is np.not_equal
        if ufunc in OPERATORS and method == "__call__" and not named:
            return function(OPERATORS[ufunc])(*given)
        return self.__array_function__(ufunc)

    def __array_function__(self, called: Any, *_: object) -> NoReturn:
        name = str(getattr(called, "__name__", called))
        raise OptionError(f"numpy.{name} needs arrays, got a graphc value{_cure(name)}")


def _together(given: tuple[Any, ...]) -> Any:
    """Return arguments as one sequence: several numbers, or a single sequence."""
    is_sequence = len(given) == 1 and not isinstance(given[0], int | np.integer)
    return given[0] if is_sequence else given


@functools.lru_cache(256)  # every value of a network may look up the same missing name
def _cure(name: str) -> str:
    """Return the part of an error message that suggests an alternative to a missing name."""
    if name in NUMBERS:
        return "; it has no data before a step runs, so read the outputs of a step"
    found = name if name in _public else ELSEWHERE.get(name, "")
    if found in _public:
        return f"; write graphc.{found}(x, ...)"
    methods = [known for known in dir(Methods) if not known.startswith("_")]
    return did_you_mean(name, dict.fromkeys([*methods, *_public]), before="; ")
