"""Initial values of states: the same numbers on every machine for a seed and a name.

Uniform values are exact; normal ones are computed in float64 and rounded, so that they agree to
the last bit wherever log, sin and cos agree to float64's. The bits come from Philox (NumPy
guarantees the streams of its bit generators) keyed by the seed and a hash of the state's name, so a
parameter's values do not depend on what else the network has.
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

    Of a row that ranks hold together, `rank` says whose part it is.
    """
    match state.initial:
        case Contents() as contents:
            out[...] = contents.array
        case Shard() as shard:
            _fill_part(shard, seed, out, rank)
        case Initial() as initial:
            _fill(state.name, initial, seed, out)


def _fill_part(shard: Shard, seed: int, out: Array, rank: int) -> None:
    """The part of a rank; a member is drawn as where one process has it whole."""
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
    """Uniform on [0, 1) with 53 bits, by exact arithmetic."""
    bits = np.asarray(generator.random_raw(count), np.uint64)
    return (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _uniform(generator: np.random.Philox, count: int) -> Array:
    return 2.0 * _unit(generator, count) - 1.0


def _normal(generator: np.random.Philox, count: int) -> Array:
    """Box and Muller's transform in float64."""
    pairs = -(-count // 2)
    radius = np.sqrt(-2.0 * np.log(1.0 - _unit(generator, pairs)))
    angle = 2.0 * np.pi * _unit(generator, pairs)
    drawn: Array = np.concatenate([radius * np.cos(angle), radius * np.sin(angle)])[:count]
    return drawn
