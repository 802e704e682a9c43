"""Rotary position embedding (Su et al., 2021), composed of other ops."""

from __future__ import annotations

import sys

import numpy as np

from graphc.errors import DTypeError, ShapeError, number_between, truth, whole_number
from graphc.ir.builder import as_value, constant
from graphc.ir.graph import Value
from graphc.ops.concat import concat, split
from graphc.ops.elementwise import add, mul, sub
from graphc.ops.shape import reshape

MOST_POSITION = 2**31 - 1


def rope(
    x: Value, base: float = 10_000.0, *, interleaved: bool = False, first_position: int = 0
) -> Value:
    """Rotate pairs of elements of float x (batch, heads, positions, width) by angles (RoPE).

    Pair i at position p is rotated by the angle p / base^(2 i / width). It consists of elements i
    and i + width / 2 (GPT-NeoX, Llama), or 2 i and 2 i + 1 if `interleaved` (GPT-J). The first
    position is number `first_position`, which is not 0 for queries and keys that follow cached
    ones. x may have any number of leading axes.

    The sines and cosines are two constants of (positions, width / 2), which calls with equal
    arguments share. Raises `DTypeError` unless x is float, `ShapeError` unless x has two axes and
    an even width, and `OptionError` for a `base` below 1 or a negative position.
    """
    type = as_value("rope", x).type
    if type.dtype.kind != "float":
        raise DTypeError(f"rope: x must be float, got {type}; convert with graphc.cast")
    if type.rank < 2 or type.shape[-1] % 2:
        raise ShapeError(f"rope: x must be (..., positions, an even width), got {type}")
    base = number_between("rope: base", base, 1.0, sys.float_info.max)
    first = whole_number("rope: first_position", first_position, 0, MOST_POSITION)
    *leading, positions, width = type.shape
    half = width // 2
    pairs, axis = ((half, 2), -1) if truth("rope: interleaved", interleaved) else ((2, half), -2)
    places = np.arange(first, first + positions, dtype=np.float64)[:, np.newaxis]
    angles = np.expand_dims(places * base ** (-np.arange(half) / half), axis)
    cosine, sine = (constant(table(angles), dtype=type.dtype) for table in (np.cos, np.sin))
    a, b = split(reshape(x, (*leading, positions, *pairs)), 2, axis)
    turned = sub(mul(a, cosine), mul(b, sine)), add(mul(b, cosine), mul(a, sine))
    return reshape(concat(turned, axis), type.shape)
