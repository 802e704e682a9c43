"""The numbers of a constant, which never change and are part of the text of a graph.

Up to `MOST_WRITTEN` numbers are written as the shortest decimals that read back to the same bits:

    @shift: f32[2] = constant() {values=(0.1, -2.5)}

More numbers, or bits that decimals do not reproduce, are little-endian bytes in base64 with a
digest:

    @table: f32[64] = constant() {base64='AACAPwAA...', digest='0c7f...'}
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from graphc.errors import DTypeError, OptionError, quoted
from graphc.ir.types import DTYPES, DType, TensorType, as_dtype, float32

Array = np.ndarray[Any, np.dtype[Any]]

MOST_WRITTEN = 16
"""The most numbers written as decimals; for more numbers, base64 is shorter."""


@dataclass(frozen=True, slots=True, eq=False)
class Contents:
    """The value of a constant: a read-only `array`, and a digest of its type and bytes."""

    array: Array
    type: TensorType = field(init=False)
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        own = np.array(self.array, order="C")
        own.flags.writeable = False
        object.__setattr__(self, "array", own)
        object.__setattr__(self, "type", TensorType(own.shape, as_dtype(own.dtype)))
        digest = hashlib.blake2b(str(self.type).encode(), digest_size=16)
        digest.update(_little_endian(own))
        object.__setattr__(self, "digest", digest.hexdigest())

    @property
    def details(self) -> dict[str, Any]:
        """The numbers as attributes in the text form of a graph.

        `read_contents` reads them back.
        """
        if self.array.size <= MOST_WRITTEN:
            values = tuple(_shortest(number) for number in self.array.reshape(-1))
            is_finite = all(map(math.isfinite, values))
            if is_finite and _little_endian(_of_values(values, self.type.dtype)) == _little_endian(
                self.array
            ):
                return {"values": values}
        encoded = base64.b64encode(_little_endian(self.array)).decode("ascii")
        return {"base64": encoded, "digest": self.digest}


def contents_of(given: object, dtype: object = None) -> Contents:
    """Return the contents of a user's array or nested lists of numbers.

    Python floats become float32; arrays keep their dtype. Raises `OptionError` if `given` is not an
    array of numbers, and `DTypeError` for a dtype that tensors cannot have or that cannot represent
    the numbers.
    """
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise OptionError(
            f"a constant must be an array, or nested lists of equal length: {error}"
        ) from None
    if isinstance(given, np.ma.MaskedArray):
        raise OptionError("a constant cannot be a masked array; pass .filled(...)")
    if array.dtype.kind not in "fiub" and array.dtype not in [d.numpy for d in DTYPES]:
        raise OptionError(f"a constant must be an array of numbers, got {quoted(given)}")
    if dtype is not None:
        return Contents(_converted(array, as_dtype(dtype)))
    if array.dtype == np.float64 and not isinstance(given, np.ndarray | np.generic):
        return Contents(_converted(array, float32))
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    try:
        return Contents(array)
    except DTypeError as error:
        raise DTypeError(f"{error}; convert the array, or pass dtype=") from None


def _converted(array: Array, dtype: DType) -> Array:
    """Convert an array to a dtype.

    Raises `DTypeError` for a number out of range, or an inexact integer.
    """
    with np.errstate(all="ignore"):
        found = array.astype(dtype.numpy)
        is_float = dtype.kind == "float"
        held = np.isfinite(found) | ~np.isfinite(array) if is_float else found == array
    if not held.all():
        raise DTypeError(
            f"{dtype} cannot represent all numbers of the {array.dtype} constant; pass another "
            "dtype="
        )
    return found


def read_contents(wanted: TensorType, details: Mapping[str, Any]) -> Contents:
    """Return the contents from their text form `details`.

    Raises `OptionError` if they are invalid.
    """
    if set(details) == {"values"}:
        array = _of_numbers(wanted, details["values"])
    elif set(details) == {"base64", "digest"}:
        array = _of_bytes(wanted, details["base64"])
    else:
        raise OptionError(
            f"a constant needs either values, or base64 and digest, got {quoted(list(details))}"
        )
    found = Contents(array.reshape(wanted.shape))
    if details.get("digest", found.digest) != found.digest:
        raise OptionError(
            f"the bytes of the constant have the digest {found.digest}, but the file records "
            f"{quoted(details['digest'])}; the bytes were changed after writing"
        )
    return found


def _of_numbers(wanted: TensorType, values: object) -> Array:
    if not isinstance(values, tuple) or len(values) != wanted.elements:
        raise OptionError(
            f"values must be a flat list of {wanted.elements} numbers, got {quoted(values)}"
        )
    kinds = {"float": (int, float), "int": (int,), "bool": (bool,)}[wanted.dtype.kind]
    try:
        if all(type(value) in kinds for value in values):
            array = _of_values(values, wanted.dtype)
            if np.isfinite(array.astype(np.float64)).all():
                return array
    except OverflowError:
        pass
    raise OptionError(f"values must be of {wanted.dtype}, got {quoted(values)}")


def _of_bytes(wanted: TensorType, encoded: object) -> Array:
    try:
        content = base64.b64decode(encoded, validate=True)  # type: ignore[arg-type]
    except (TypeError, ValueError, binascii.Error) as error:
        raise OptionError(f"the bytes of the constant are not valid base64: {error}") from None
    if len(content) != wanted.bytes:
        raise OptionError(f"{wanted} needs {wanted.bytes} bytes, got {len(content)}")
    words = np.frombuffer(content, f"<u{wanted.dtype.itemsize}")
    if wanted.dtype.kind == "bool" and words.max() > 1:
        raise OptionError("each byte of a bool constant must be 0 or 1")
    return words.astype(words.dtype.newbyteorder("=")).view(wanted.dtype.numpy)


def _of_values(values: tuple[Any, ...], dtype: DType) -> Array:
    """Convert a sequence of numbers to an array of a dtype."""
    with np.errstate(over="ignore"):
        wide = np.float64 if dtype.kind == "float" else dtype.numpy
        return np.array(values, wide).astype(dtype.numpy)


def _shortest(number: Any) -> int | float | bool:
    """Convert a NumPy number to a Python number.

    A float becomes the number with the shortest decimal form that converts back to the same bits.
    """
    return number.item() if number.dtype.kind in "iub" else float(str(number))


def _little_endian(array: Array) -> bytes:
    size = array.dtype.itemsize
    return array.view(f"u{size}").astype(f"<u{size}", copy=False).tobytes()
