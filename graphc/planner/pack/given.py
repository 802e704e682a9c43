"""User-provided buffers: validated, rounded up to the alignment, and scaled to units."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from graphc.errors import PackingError, whole_number
from graphc.planner.pack.problem import Flags, Integers, PackingProblem

Naming = Callable[[int], str]
"""A function from a buffer's index to its name in messages."""

LARGEST = 2**62
"""The exclusive limit of the total of all sizes, and of the end of a pinned buffer, in bytes."""


@dataclass(frozen=True, slots=True)
class Buffers:
    """Validated buffers, with sizes and offsets in bytes. `size` is rounded up to the alignment;
    `offset` is valid where `is_pinned`.

    `name_of` returns the name of a buffer in messages, by its index.
    """

    lower: Integers
    upper: Integers
    size: Integers
    is_pinned: Flags
    offset: Integers
    alignment: int
    name_of: Naming

    @classmethod
    def of(
        cls,
        lower: npt.ArrayLike,
        upper: npt.ArrayLike,
        size: npt.ArrayLike,
        alignment: int,
        pinned: Mapping[int, int] | None,
        ids: Sequence[str] | None = None,
    ) -> Buffers:
        """Return the buffers of the arguments; raises `PackingError`, which names the first invalid
        entry."""
        alignment = whole_number("alignment", alignment)
        if alignment >= LARGEST:
            raise PackingError(f"alignment must be below 2**62 bytes, got {alignment}")
        columns = {"lower": lower, "upper": upper, "size": size}
        checked = {name: _whole(name, column) for name, column in columns.items()}
        lengths = {name: len(column) for name, column in checked.items()}
        if ids is not None:
            if not isinstance(ids, Sequence | np.ndarray):
                raise PackingError(f"ids must be a list of names, one per buffer, got {ids!r}")
            lengths["ids"] = len(ids)
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{name} has {length}" for name, length in lengths.items())
            raise PackingError(f"{', '.join(lengths)} must have one entry per buffer, got {told}")
        name_of = str if ids is None else (lambda index: repr(ids[index]))
        low, high, sizes = checked.values()
        _refuse("lower must be below upper", low >= high, name_of, lower=low, upper=high)
        _refuse("size must be at least 0 bytes", sizes < 0, name_of, size=sizes)
        total = sum(-(-int(entry) // alignment) * alignment for entry in sizes[sizes > 0].tolist())
        if total >= LARGEST:
            raise PackingError(
                f"all sizes together must stay below 2**62 bytes, got {total} with alignment "
                f"{alignment}; give sizes in a larger unit"
            )
        rounded = -(-sizes // alignment) * alignment
        is_pinned, offset = _pins(pinned, rounded, alignment, name_of)
        buffers = cls(low, high, rounded, is_pinned, offset, alignment, name_of)
        buffers._check_pins()
        return buffers

    def problem(self, chosen: Integers) -> tuple[PackingProblem, int]:
        """Return the packing problem of the chosen buffers in units, and the number of bytes per
        unit."""
        size, offset, is_pinned = self.size[chosen], self.offset[chosen], self.is_pinned[chosen]
        unit = int(np.gcd.reduce(np.concatenate((size, offset[is_pinned])))) or 1
        problem = PackingProblem.of(
            self.lower[chosen], self.upper[chosen], size // unit, is_pinned, offset // unit
        )
        return problem, unit

    def _check_pins(self) -> None:
        """Raise `PackingError` if two pinned buffers have a byte in common while both are live."""
        pinned = np.flatnonzero(self.is_pinned & (self.size > 0))
        pinned = pinned[np.argsort(self.lower[pinned], kind="stable")]
        start, end = self.offset[pinned], self.offset[pinned] + self.size[pinned]
        upper = self.upper[pinned]
        for place, index in enumerate(pinned.tolist()):
            later = slice(place + 1, int(np.searchsorted(self.lower[pinned], upper[place])))
            clash = np.flatnonzero((start[later] < end[place]) & (start[place] < end[later]))
            if len(clash):
                other = int(pinned[place + 1 + clash[0]])
                raise PackingError(
                    f"pinned buffers overlap: {self.told(index)} and {self.told(other)}; move one, "
                    "or remove its pinned offset",
                    (index, other),
                )

    def told(self, index: int) -> str:
        """Describe a pinned buffer for a message."""
        start, size = int(self.offset[index]), int(self.size[index])
        return (
            f"buffer {self.name_of(index)}, live [{self.lower[index]}, {self.upper[index]}) at "
            f"bytes [{start}, {start + size})"
        )


def _whole(name: str, column: npt.ArrayLike) -> Integers:
    """Return the argument `name` as an int64 array; raises `PackingError` if it is not a list of
    integers."""
    try:
        array = np.asarray(column)
    except ValueError:  # rows of unequal lengths
        raise PackingError(f"{name} must be a list of integers, got {column!r}") from None
    if array.ndim != 1:
        raise PackingError(
            f"{name} must be a list of integers, one per buffer, got shape {array.shape}"
        )
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.dtype.kind not in "iu":
        raise PackingError(f"{name} must contain integers, got {_odd_one(array)}")
    if int(array.max()) >= LARGEST or int(array.min()) <= -LARGEST:
        raise PackingError(
            f"{name} must stay between -2**62 and 2**62, got {int(array.min())} to "
            f"{int(array.max())}"
        )
    return np.ascontiguousarray(array, np.int64)


def _odd_one(array: npt.NDArray[Any]) -> str:
    """Describe the first entry that is not an integer, for a message."""
    for index, entry in enumerate(array.tolist()):
        if isinstance(entry, bool) or not isinstance(entry, int):
            return f"{entry!r} for buffer {index}"
    return f"numbers too large, such as {array[0]!r}"


def _pins(
    pinned: Mapping[int, int] | None, size: Integers, alignment: int, name_of: Naming
) -> tuple[Flags, Integers]:
    if not isinstance(pinned, Mapping | None):
        raise PackingError(f"pinned must map indices of buffers to offsets, got {pinned!r}")
    count = len(size)
    is_pinned, offset = np.zeros(count, np.bool_), np.zeros(count, np.int64)
    for index, given in (pinned or {}).items():
        if not 0 <= whole_number("an index of pinned", index, 0) < count:
            raise PackingError(f"pinned contains buffer {index}, but buffers are 0 to {count - 1}")
        name = name_of(int(index))
        start = whole_number(f"the offset of pinned buffer {name}", given, 0)
        if start % alignment:
            raise PackingError(
                f"pinned buffer {name} must start at a multiple of the alignment {alignment}, got "
                f"{start}",
                (int(index),),
            )
        if start + int(size[index]) >= LARGEST:
            end = start + int(size[index])
            raise PackingError(f"pinned buffer {name} must end below 2**62, got {end}", (index,))
        is_pinned[index], offset[index] = True, start
    return is_pinned, offset


def _refuse(rule: str, is_wrong: Flags, name_of: Naming, **columns: Integers) -> None:
    wrong = np.flatnonzero(is_wrong)
    if len(wrong):
        index = int(wrong[0])
        got = ", ".join(f"{name} {int(column[index])}" for name, column in columns.items())
        more = f" ({len(wrong) - 1} more buffers are invalid)" if len(wrong) > 1 else ""
        raise PackingError(f"buffer {name_of(index)}: {rule}, got {got}{more}", (index,))
