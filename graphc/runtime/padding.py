"""Feeds that are smaller than their inputs, and the numbers that fill the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Padded:
    """A feed for the elements of an input from index 0 on in each axis.

    All other elements of the input get the number `rest`, a scalar array. Both have its dtype.
    """

    corner: Array
    rest: Array

    def whole(self, shape: tuple[int, ...]) -> Array:
        """Return a new array with the shape of the input."""
        found: Array = np.empty(shape, self.corner.dtype)
        write(found, self)
        return found


def write(target: Array, given: Array | Padded) -> None:
    """Copy a feed to the array of its input."""
    if isinstance(given, Padded):
        np.copyto(target, given.rest)
        np.copyto(target[tuple(map(slice, given.corner.shape))], given.corner)
    else:
        np.copyto(target, given)
