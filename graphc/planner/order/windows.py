"""Local search that solves windows of an order around its peak exactly.

A window is a range of consecutive steps of the order. Values that none of its steps touches
contribute a constant to its live bytes. So a window is a small problem of precedence.py with the
values of its own steps. Those that are live after the window are in `live_out`. The base gives its
first step the same live bytes as in the whole order. exact.py finds an order with a peak below that
of the whole order, or none. The steps then go back to the same positions. Steps outside the window
see the same live values as before.

Windows are chosen around the peak: first 12 steps, then 24, with the peak in the middle or a
quarter from either end. After each gain, the peak is located again. The search ends after a round
without gain or after about 100 windows, each of at most 2,000 sets.
"""

from __future__ import annotations

from graphc.planner.order.exact import least_peak_order
from graphc.planner.order.precedence import Precedence

WIDTHS = (12, 24)
"""Lengths of windows in steps, tried in this order."""

EXPANSIONS = 2_000
"""Maximum number of sets of steps that the search of one window expands."""

WINDOWS = 100
"""Number of windows after which the search ends."""


def improve_windows(problem: Precedence, sequence: list[int]) -> list[int]:
    """Return an order with the same or a lower peak, in which steps are moved only inside
    windows."""
    sequence = list(sequence)
    profile = problem.profile(sequence)
    tries = WINDOWS
    while tries > 0:
        peak = max(profile, default=0)
        # The first position of the peak; equal peaks follow once this one is lower.
        at = profile.index(peak)
        for start, stop in _around(at, len(sequence)):
            tries -= 1
            window = sequence[start:stop]
            inner = _window(problem, sequence, start, stop, profile[start])
            order = least_peak_order(inner, peak, EXPANSIONS)
            if order is not None:
                sequence[start:stop] = [window[index] for index in order]
                # Live values outside the window are unchanged, so the rest of the profile is, too.
                profile[start:stop] = inner.profile(order)
                break
        else:
            break
    return sequence


def _around(at: int, count: int) -> list[tuple[int, int]]:
    """Return windows `[start, stop)` around a peak at position `at`: in the middle, then near
    either end."""
    # A dictionary removes duplicates, which occur near the ends of an order and in short orders.
    found: dict[tuple[int, int], None] = {}
    for width in WIDTHS:
        for ahead in (width // 2, width // 4, 3 * width // 4):
            start = max(0, min(at - ahead, count - width))
            found[start, min(start + width, count)] = None
    return list(found)


def _window(
    problem: Precedence, sequence: list[int], start: int, stop: int, level: int
) -> Precedence:
    """Return the window `[start, stop)` of a sequence as a problem; `level` bytes are live during
    its first step."""
    steps = problem.steps
    window = sequence[start:stop]
    inside = set(window)
    touched = {value for step in window for value in (*steps.inputs[step], *steps.outputs[step])}
    earlier = set(sequence[:start])
    beyond = {
        value
        for value in touched
        if value in steps.live_out
        or any(r not in inside and r not in earlier for r in problem.consumers[value])
    }
    # The base is the bytes of other values, which are live throughout: the difference at the start.
    inner = problem.restricted(window, beyond, 0)
    return problem.restricted(window, beyond, level - inner.profile(range(len(window)))[0])
