"""Generated buffers with lifetimes, for benchmarks and tests: births, deaths and sizes."""

from __future__ import annotations

from typing import Any

import numpy as np

Columns = tuple[Any, Any, Any]


def cut_rectangle(buffers: int, times: int, height: int, seed: int) -> Columns:
    """Buffers that fill [0, times) x [0, height) without a gap, some cut around a pinwheel."""
    rng = np.random.default_rng(seed)
    pieces = [(0, times, 0, height)]
    while len(pieces) < buffers:
        areas = np.array([(b - a) * (d - c) for a, b, c, d in pieces], float)
        a, b, c, d = pieces.pop(rng.choice(len(pieces), p=areas / areas.sum()))
        if b - a >= 3 and d - c >= 3 and rng.random() < 0.2:
            s, t = sorted(rng.choice(np.arange(a + 1, b), 2, replace=False))
            p, q = sorted(rng.choice(np.arange(c + 1, d), 2, replace=False))
            pieces += [(a, t, c, p), (t, b, c, q), (s, b, q, d), (a, s, p, d), (s, t, p, q)]
        elif b - a >= 2 and (rng.random() < 0.5 or d - c < 2):
            t = rng.integers(a + 1, b)
            pieces += [(a, t, c, d), (t, b, c, d)]
        else:
            p = rng.integers(c + 1, d)
            pieces += [(a, b, c, p), (a, b, p, d)]
    lower, upper, start, end = np.array(pieces, np.int64)[rng.permutation(len(pieces))].T
    return lower, upper, end - start


def training_trace(layers: int, seed: int, kept: float = 0.9) -> Columns:
    """Forward values that live until the backward pass reads them, and gradients of one step."""
    rng = np.random.default_rng(seed)
    size = rng.integers(1, 2000, layers) * 64
    step = np.arange(layers)
    is_kept = rng.random(layers) < kept
    forward = np.where(is_kept, 2 * layers - step, step + 2)
    backward = layers + step
    lower = np.concatenate((step, backward))
    upper = np.concatenate((forward, backward + rng.integers(1, 4, layers)))
    return lower, upper, np.concatenate((size, size[::-1]))


def random_lifetimes(buffers: int, seed: int) -> Columns:
    """Births at any time, most lives short and some long."""
    rng = np.random.default_rng(seed)
    lower = rng.integers(0, buffers, buffers)
    duration = 1 + np.minimum(rng.pareto(1.0, buffers) * 10, buffers).astype(np.int64)
    return lower, lower + duration, rng.integers(1, 2000, buffers) * 64
