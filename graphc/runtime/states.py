"""The states of a program as a mapping from names to arrays."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, MutableMapping
from typing import Any

import numpy as np

from graphc.errors import OptionError, UnknownNameError, did_you_mean
from graphc.runtime.ranks.held import Held

Array = np.ndarray[Any, np.dtype[Any]]


class States(MutableMapping[str, Array]):
    """A mapping from names to states of a program.

    Reading returns a copy; writing checks shape and dtype.
    """

    def __init__(
        self,
        states: Mapping[str, Held],
        read: Callable[[Held], Array],
        write: Callable[[Held, Array], None],
        constants: Collection[str],
    ) -> None:
        self._states, self._read, self._write = states, read, write
        self._constants = constants

    def __getitem__(self, name: str) -> Array:
        self._require(name)
        return self._read(self._states[name])

    def __setitem__(self, name: str, given: Array) -> None:
        self._require(name)
        state = self._states[name]
        wanted = f"{name!r} is {state.type.dtype.numpy}{list(state.shape)}"
        try:
            array = np.asarray(given)
        except ValueError as error:
            raise OptionError(f"{wanted}, got no array: {error}; assign an array") from None
        if isinstance(given, np.ma.MaskedArray):
            raise OptionError(f"{wanted}, got a masked array; assign .filled(number)")
        if array.shape != state.shape or array.dtype != state.type.dtype.numpy:
            raise OptionError(
                f"{wanted}, got {array.dtype}{list(array.shape)}; convert it with .astype and "
                ".reshape"
            )
        self._write(state, array)

    def __contains__(self, name: object) -> bool:
        return name in self._states

    def __delitem__(self, name: str) -> None:
        raise OptionError(f"{name!r} cannot be removed: its bytes are part of the plan")

    def __iter__(self) -> Iterator[str]:
        return iter(self._states)

    def __len__(self) -> int:
        return len(self._states)

    def _require(self, name: str) -> None:
        if name not in self._states:
            some = f"some of the states are {', '.join(list(self._states)[:6])}"
            cure = did_you_mean(name, self._states) or some
            if name in self._constants:
                cure = "it is a constant, which is part of the plan and never changes"
            raise UnknownNameError(f"there is no {name!r}; {cure}")
