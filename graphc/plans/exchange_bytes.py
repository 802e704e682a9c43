"""Workspace of collectives on a CPU, outside the arena, for received bytes until they are summed.

All collectives of a program share one workspace, since they run one after another, on a piece of
each rank at a time (`graphc.runtime.ranks.sums`). Memory allocated by MPI itself cannot be planned.
Memory that NCCL allocates on a GPU is known once ranks are connected.
"""

from __future__ import annotations

PIECE_BYTES = 1 << 18
"""The maximum number of bytes received from all ranks at a time; from each at least
`LEAST_BYTES`."""

LEAST_BYTES = 1 << 12

WIDEST = 8
"""The bytes of the largest element that is summed."""

WIDE_PIECES = 4
"""Pieces for the float32 sum of 16-bit numbers: two numbers of twice the bytes each."""


def piece_bytes(ranks: int) -> int:
    """Return the bytes of a rank's piece, a multiple of every element's size."""
    return max(LEAST_BYTES, PIECE_BYTES // ranks // WIDEST * WIDEST)


def room_bytes(ranks: int) -> int:
    """Return the workspace bytes of a program with that many ranks; one rank needs none."""
    return (ranks + WIDE_PIECES) * piece_bytes(ranks) if ranks > 1 else 0
