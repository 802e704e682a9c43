"""Instances whose least height is known, and a checker that shares no code with the package."""

import numpy as np


def overlaps(lower, upper, size, offsets):
    """Pairs of buffers that share a time and a byte, each pair once."""
    found = []
    for i in range(len(lower)):
        for j in range(i):
            in_time = lower[i] < upper[j] and lower[j] < upper[i]
            in_place = offsets[i] < offsets[j] + size[j] and offsets[j] < offsets[i] + size[i]
            if in_time and in_place and size[i] and size[j]:
                found.append((j, i))
    return found


def most_live(lower, upper, size):
    """The most bytes live at one time, time by time."""
    return max(
        (sum(s for a, b, s in zip(lower, upper, size, strict=True) if a <= t < b) for t in lower),
        default=0,
    )


def least_height(lower, upper, size):
    """By all orders in which each buffer is put as low as the placed ones let it.

    Some order of the offsets of a lowest packing finds that packing, or one as low.
    """
    best = sum(size)

    def place(placed, left):
        nonlocal best
        if max((offset + size[i] for i, offset in placed), default=0) >= best:
            return
        if not left:
            best = max((offset + size[i] for i, offset in placed), default=0)
        for i in left:
            under = [
                offset + size[j]
                for j, offset in placed
                if lower[i] < upper[j] and lower[j] < upper[i]
            ]
            place([*placed, (i, max(under, default=0))], left - {i})

    place([], frozenset(range(len(size))))
    return best


def cut_rectangle(buffers, times, height, seed):
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


def training_trace(layers, seed, kept=0.9):
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
