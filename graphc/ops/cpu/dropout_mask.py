"""The dropout mask of some elements, as one compiled loop over Philox blocks.

The loop computes what `graphc.ops.random.draw_stays` computes with NumPy, for a range of elements
that may begin inside a block of four.
"""

from __future__ import annotations

import numpy as np

from graphc.ir.op import Array
from graphc.jit import compiled

FACTOR_0, FACTOR_1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
WEYL_0, WEYL_1 = np.uint64(0x9E3779B9), np.uint64(0xBB67AE85)
LOW, HALF, UNUSED = np.uint64(0xFFFFFFFF), np.uint64(32), np.uint64(8)
ROUNDS, LANES = 10, 4


@compiled
def draw_dropped(
    first: int, stream: int, seed: Array, step: Array, least: int, keys: Array, dropped: Array
) -> None:
    """Set the elements of `dropped` that dropout drops, for elements from number `first` on.

    An element is dropped if its 24 random bits are below `least`. `seed` has two integers and
    `step` one, at most the low 32 bits of which are used. `keys` (rounds, 2) is scratch.
    """
    key_0, key_1 = np.uint64(seed[0]) & LOW, np.uint64(seed[1]) & LOW
    for number in range(ROUNDS):
        keys[number, 0], keys[number, 1] = key_0, key_1
        key_0, key_1 = (key_0 + WEYL_0) & LOW, (key_1 + WEYL_1) & LOW
    of_stream, of_step = np.uint64(stream), np.uint64(step[0]) & LOW
    bound, skipped = np.uint64(least), first % LANES
    for each in range((skipped + dropped.size + LANES - 1) // LANES):
        block = np.uint64(first // LANES + each)
        a, b, c, d = block & LOW, block >> HALF, of_stream, of_step
        for number in range(ROUNDS):
            p, q = a * FACTOR_0, c * FACTOR_1
            a, b = (q >> HALF) ^ b ^ np.uint64(keys[number, 0]), q & LOW
            c, d = (p >> HALF) ^ d ^ np.uint64(keys[number, 1]), p & LOW
        at = LANES * each - skipped
        if at >= 0 and at + LANES <= dropped.size:
            dropped[at] = (a >> UNUSED) < bound
            dropped[at + 1] = (b >> UNUSED) < bound
            dropped[at + 2] = (c >> UNUSED) < bound
            dropped[at + 3] = (d >> UNUSED) < bound
        else:
            for lane, word in enumerate((a, b, c, d)):
                if 0 <= at + lane < dropped.size:
                    dropped[at + lane] = (word >> UNUSED) < bound
