"""Initial values of states: equal on every machine for the same seed and name.

Uniform values are exact. Normal values are computed in float64 and rounded, so they are equal bit
for bit on machines whose float64 log, sin and cos are equal. The bits come from the Philox
generator; NumPy guarantees the streams of its bit generators. Its key is the seed and a hash of the
name of the state. The values of a parameter therefore do not depend on the rest of the network.
"""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np

from graphc.ir.contents import Contents
from graphc.ir.graph import Initial, State
from graphc.ir.shards import Shard, overlap

Array = np.ndarray[Any, np.dtype[Any]]

_CHUNK = 1 << 18


def fill_initial(state: State, seed: int, out: Array, rank: int = 0) -> None:
    """Write the state's initial values into `out`, contiguous.

    For a sharded state, `rank` selects the part.
    """
    match state.initial:
        case Contents() as contents:
            out[...] = contents.array
        case Shard() as shard:
            _fill_part(shard, seed, out, rank)
        case Initial() as initial:
            _fill(state.name, initial, seed, out)


def _fill_part(shard: Shard, seed: int, out: Array, rank: int) -> None:
    """Fill the part of a rank.

    Each member gets the same values as without sharding.
    """
    out.fill(0)
    for first, member in shard.places():
        in_part, in_member = overlap(rank * out.size, out.size, first, member.elements)
        if in_part.start < in_part.stop:
            whole = np.empty(member.elements, out.dtype)
            _fill(member.name, member.initial, seed, whole)
            out[in_part] = whole[in_member]


def _fill(name: str, initial: Initial, seed: int, out: Array) -> None:
    if initial.kind == "constant":
        out.fill(initial.scale)
        return
    if initial.kind == "seed":
        out[...] = (seed & 0xFFFFFFFF, seed >> 32)
        return
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    key = np.array([seed, int.from_bytes(digest, "little")], np.uint64)
    generator = np.random.Philox(key=key)
    flat = out.reshape(-1)
    draw = _uniform if initial.kind == "uniform" else _normal
    for start in range(0, flat.size, _CHUNK):
        part = flat[start : start + _CHUNK]
        part[...] = (draw(generator, part.size) * initial.scale).astype(part.dtype)


def _unit(generator: np.random.Philox, count: int) -> Array:
    """Draw uniform numbers in `[0, 1)` with 53 bits, by exact arithmetic."""
    bits = np.asarray(generator.random_raw(count), np.uint64)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _uniform(generator: np.random.Philox, count: int) -> Array:
    return 2.0 * _unit(generator, count) - 1.0


def _normal(generator: np.random.Philox, count: int) -> Array:
    """Draw normal numbers by the Box-Muller transform in float64."""
    pairs = -(-count // 2)
    radius = np.sqrt(-2.0 * np.log(1.0 - _unit(generator, pairs)))
    angle = 2.0 * np.pi * _unit(generator, pairs)
    drawn: Array = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    return drawn
