"""Rows of noise, by Philox on Python's own integers, and of what stops gradients."""

from __future__ import annotations

import math

import numpy as np
from ops.samples.sample import M, Sample, direct

import graphc as g
from graphc.ops import random

WORD = 2**32


def philox(counter, key):
    """Philox4x32-10 of one block (Salmon et al., 2011)."""
    a, b, c, d = counter
    for turn in range(10):
        p, q = 0xD2511F53 * a, 0xCD9E8D57 * c
        keys = [(k + turn * w) % WORD for k, w in zip(key, (0x9E3779B9, 0xBB67AE85), strict=True)]
        a, b, c, d = q // WORD ^ b ^ keys[0], q % WORD, p // WORD ^ d ^ keys[1], p % WORD
    return a, b, c, d


def fractions(count, stream, seed, step, wide):
    """So many numbers in [0, 1): of 24 bits, or of 53 bits, of two words each."""
    found = []
    for block in range(count):
        words = philox((block, 0, stream, int(step)), [int(word) for word in seed])
        if wide:
            pairs = ((words[0], words[1]), (words[2], words[3]))
            found += [((p >> 5) * 2**26 + (q >> 6)) / 2**53 for p, q in pairs]
        else:
            found += [word // 256 / 2**24 for word in words]
    return found[:count]


def uniform(seed, step, shape=M, low=-1.0, high=3.0, stream=0, wide=True):
    found = fractions(math.prod(shape), stream, seed, step, wide)
    return low + (high - low) * np.array(found).reshape(shape)


def normal(seed, step, shape=M, mean=0.5, scale=2.0, stream=0, wide=True):
    even = math.prod(shape) + math.prod(shape) % 2
    found = np.array(fractions(even, stream, seed, step, wide)).reshape(-1, 2)
    step = 2.0 ** (-53 if wide else -24)
    radius, angle = np.sqrt(-2 * np.log(found[:, 0] + step)), 2 * np.pi * found[:, 1]
    pairs = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    return mean + scale * pairs.ravel()[: math.prod(shape)].reshape(shape)


COUNTERS = {"shapes": ((2,), ()), "dtypes": ("int64", "int64"), "int_limit": 1000}

SAMPLES = [
    Sample(
        "uniform", direct(random.Uniform, random.UniformAttributes(M, "float64", -1.0, 3.0, 0)),
        reference=uniform, **COUNTERS,
    ),
    Sample(
        "normal", direct(random.Normal, random.NormalAttributes(M, "float64", 0.5, 2.0, 0)),
        reference=normal, **COUNTERS,
    ),
    Sample("stop_gradient", g.stop_gradient, (M,), lambda x: x),
]  # fmt: skip
