"""Generated buffers with lifetimes, for benchmarks and tests: births, deaths and sizes."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
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


def cut_evenly(buffers: int, times: int, height: int, seed: int) -> Columns:
    """About so many buffers that fill [0, times) x [0, height): all pieces are cut at once."""
    rng = np.random.default_rng(seed)
    pieces = np.array([[0, times, 0, height]])
    ready = []
    # What is above it is cut in two or five pieces, so that the mean ends near times x height / n.
    limit = 2.45 * times * height / buffers
    while len(pieces):
        a, b, c, d = pieces.T
        large = (b - a) * (d - c).astype(float) > limit * np.exp(rng.normal(0, 0.5, len(a)))
        is_cut = large & ((b - a >= 2) | (d - c >= 2))
        ready.append(pieces[~is_cut])
        a, b, c, d = pieces[is_cut].T
        wheel = (b - a >= 3) & (d - c >= 3) & (rng.random(len(a)) < 0.2)
        # Long ones rather in time, large ones rather in bytes.
        longer = np.log((b - a) / times) - np.log((d - c) / height) > rng.normal(0, 1, len(a))
        in_time = ~wheel & (b - a >= 2) & (longer | (d - c < 2))
        pieces = np.concatenate(
            (
                _cut_in_time(pieces[is_cut][in_time], rng),
                _cut_in_time(pieces[is_cut][~wheel & ~in_time][:, [2, 3, 0, 1]], rng)[
                    :, [2, 3, 0, 1]
                ],
                _cut_around(pieces[is_cut][wheel], rng),
            )
        )
    lower, upper, start, end = rng.permutation(np.concatenate(ready)).T
    return lower, upper, end - start


def _cut_in_time(pieces: Any, rng: np.random.Generator) -> Any:
    a, b, c, d = pieces.T
    t = rng.integers(a + 1, b)
    return np.concatenate([np.stack(part, axis=1) for part in ((a, t, c, d), (t, b, c, d))])


def _cut_around(pieces: Any, rng: np.random.Generator) -> Any:
    """Five pieces, four of them around one."""
    a, b, c, d = pieces.T
    s = rng.integers(a + 1, b - 1)
    t = rng.integers(s + 1, b)
    p = rng.integers(c + 1, d - 1)
    q = rng.integers(p + 1, d)
    parts = ((a, t, c, p), (t, b, c, q), (s, b, q, d), (a, s, p, d), (s, t, p, q))
    return np.concatenate([np.stack(part, axis=1) for part in parts])


def first_fit_trap(power: int) -> Columns:
    """The program of Robson (1971), which drives first fit far above the bytes that are live.

    At most 2**power bytes are live. In stage i all is freed but what lies on one chosen place in
    every 2**i bytes, and blocks of 2**i bytes, which fit into no hole, take what is freed.
    """
    most = 2**power
    first, last, size = [0] * most, [0] * most, [1] * most
    live = {at: at for at in range(most)}  # block by offset, with which they are allocated
    time, place = 1, 0
    for stage in range(1, power):
        step = 2**stage

        def kept(place: int, step: int = step, live: dict[int, int] = live) -> dict[int, int]:
            return {o: i for o, i in live.items() if (place - o) % step < size[i]}

        # The place whose blocks take more room from blocks of 2**stage than they have bytes.
        either = (place, place + step // 2)
        place = max(either, key=lambda each: sum(step - size[i] for i in kept(each).values()))
        stays = kept(place)
        for index in set(live.values()) - set(stays.values()):
            last[index] = time
        live, free = stays, most - sum(size[i] for i in stays.values())
        blocks = range(len(size), len(size) + free // step)
        places = itertools.islice(_first_fit(live, size, step), len(blocks))
        live = dict(sorted([*live.items(), *zip(places, blocks, strict=True)]))
        first.extend([time] * len(blocks))
        last.extend([0] * len(blocks))
        size.extend([step] * len(blocks))
        time += 1
    for index in live.values():
        last[index] = time
    return np.array(first), np.array(last), np.array(size)


def _first_fit(live: dict[int, int], size: list[int], wanted: int) -> Iterator[int]:
    """The places that first fit gives to blocks of so many bytes, one after another.

    `live` is by rising offset.
    """
    at = 0
    for offset, index in live.items():
        yield from range(at, offset - wanted + 1, wanted)
        at = offset + size[index]
    yield from itertools.count(at, wanted)


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


def nearly_full(buffers: int, times: int, seed: int, level: float = 0.95) -> Columns:
    """Random lives, made longer until about that part of the most live bytes is live on average.

    They are not cut from a whole, so they need not fit together: the least height is not known.
    """
    rng = np.random.default_rng(seed)
    lower = rng.integers(0, times, buffers)
    upper = np.minimum(times, lower + 1 + (rng.pareto(1.2, buffers) * times / 20).astype(int))
    size = 2 ** rng.integers(0, 7, buffers) * rng.integers(4, 9, buffers)
    steps = np.zeros(times + 1, np.int64)
    np.add.at(steps, lower, size)
    np.subtract.at(steps, upper, size)
    live = steps.cumsum()[:-1]
    most = live.max()
    for index in rng.integers(buffers, size=400 * buffers):
        if live.mean() >= level * most:
            break
        later = rng.random() < 0.5
        time = upper[index] if later else lower[index] - 1
        if 0 <= time < times and live[time] + size[index] <= most:
            live[time] += size[index]
            (upper if later else lower)[index] += 1 if later else -1
    return lower, upper, size
