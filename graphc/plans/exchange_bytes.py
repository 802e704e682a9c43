"""Workspace of collectives on a CPU, outside the arena, for received bytes until they are summed.

All collectives of a program share one workspace, since they run one after another, on a piece of
each rank at a time (`graphc.runtime.ranks.sums`). Memory allocated by MPI itself cannot be planned.
Memory that NCCL allocates on a GPU is known once ranks are connected.
"""

from __future__ import annotations

PIECE_BYTES = 1 << 18
"""The maximum bytes received from all ranks together at a time, but at least `LEAST_BYTES` from
each."""

LEAST_BYTES = 1 << 12

WIDEST = 8
"""The size in bytes of the largest element that collectives sum."""

WIDE_PIECES = 4
"""Size of the workspace for float32 sums of 16-bit numbers, in received pieces. The sum and the
summand each take twice the bytes of a 16-bit piece."""


def piece_bytes(ranks: int) -> int:
    """Return the bytes that a rank receives from each rank at a time.

    They are a multiple of every element's size.
    """
    return max(LEAST_BYTES, PIECE_BYTES // ranks // WIDEST * WIDEST)


def room_bytes(ranks: int) -> int:
    """Return the bytes of the workspace for collectives of `ranks` ranks; one rank needs none."""
    return (ranks + WIDE_PIECES) * piece_bytes(ranks) if ranks > 1 else 0
