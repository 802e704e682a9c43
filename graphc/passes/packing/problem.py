"""The packing problem and its answer, as NumPy arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

Integers = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True, slots=True)
class Problem:
    """Buffers alive on half-open [lower, upper), with their sizes in bytes."""

    lower: Integers
    upper: Integers
    size: Integers

    @property
    def bound(self) -> int:
        """The most bytes live at one time: no packing is lower."""
        if not len(self.size):
            return 0
        times = np.concatenate([self.lower, self.upper])
        change = np.concatenate([self.size, -self.size])
        order = np.lexsort((change, times))  # at equal times what ends goes first
        return int(np.cumsum(change[order]).max())


@dataclass(frozen=True, slots=True)
class Packing:
    """An offset for each buffer, and the end of the highest one."""

    offsets: Integers
    height: int
