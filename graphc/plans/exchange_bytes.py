"""Bytes of a rank on a CPU beside its arena: where what arrives lies until it is summed.

One room serves all collectives of a program, since they run one after another, a piece of each rank
at a time (`graphc.runtime.ranks.sums`). What MPI takes for itself nobody can plan; what NCCL takes
on a GPU shows once ranks are connected.
"""

from __future__ import annotations

PIECE_BYTES = 1 << 18
"""What arrives at most from all ranks together at a time; from each at least `LEAST_BYTES`."""

LEAST_BYTES = 1 << 12

WIDEST = 8
"""The bytes of the largest element that is summed."""

WIDE_PIECES = 4
"""Pieces that the float32 sum of 16-bit numbers takes: two numbers of twice the bytes each."""


def piece_bytes(ranks: int) -> int:
    """Bytes of a rank's piece, a multiple of every element's size."""
    return max(LEAST_BYTES, PIECE_BYTES // ranks // WIDEST * WIDEST)


def room_bytes(ranks: int) -> int:
    """The bytes of the room of a program with so many ranks; one rank needs none."""
    return (ranks + WIDE_PIECES) * piece_bytes(ranks) if ranks > 1 else 0
