"""Windows of an order around its peak, solved exactly, until the peak stays.

A window is a run of steps of the order. What lives across it is a constant: values that no step of
it touches, and those that are live behind it, count in every order of its steps. So the window
alone is a small problem of precedence.py, with its own values, what of them must be live behind it
(`live_out`) and a base such that its first step has the bytes that it has in the whole order. exact.py
finds an order whose peak is below the whole's, or none. Its steps are then put back into the same
places: what lies before and behind sees the same values live.

The peak decides which windows: around it 12 steps, then 24, with the peak in the middle or a
quarter from either end. After each gain the peak is looked for anew; the search ends after a round
without one or after about 100 windows, each of at most 2,000 sets.
"""

from __future__ import annotations

from graphc.scheduling.exact import least_peak_order
from graphc.scheduling.precedence import Precedence

WIDTHS = (12, 24)
"""Steps of a window; where the first finds nothing, the next is tried."""

EXPANSIONS = 2_000
"""Sets of steps that the search of one window looks at."""

WINDOWS = 100
"""Windows that are solved before the order is taken as it is."""


def improve_windows(problem: Precedence, sequence: list[int]) -> list[int]:
    """Give an order with the same or a lower peak, which differs only inside windows."""
    sequence = list(sequence)
    profile = problem.profile(sequence)
    tries = WINDOWS
    while tries > 0:
        peak = max(profile, default=0)
        # The first place of the peak; others as high are looked for once this one is lower.
        at = profile.index(peak)
        for start, stop in _around(at, len(sequence)):
            tries -= 1
            window = sequence[start:stop]
            inner = _window(problem, sequence, start, stop, profile[start])
            # What does not get below the peak of the whole order is never looked at.
            order = least_peak_order(inner, peak, EXPANSIONS)
            if order is not None:
                sequence[start:stop] = [window[index] for index in order]
                # What lives across the window is the same as before, so the rest of the profile
                # stands.
                profile[start:stop] = inner.profile(order)
                break
        else:
            break
    return sequence


def _around(at: int, count: int) -> list[tuple[int, int]]:
    """Windows with the peak in the middle, then near their ends."""
    # Near the ends of an order, or in a short one, several of them are the same.
    found: dict[tuple[int, int], None] = {}
    for width in WIDTHS:
        for ahead in (width // 2, width // 4, 3 * width // 4):
            start = max(0, min(at - ahead, count - width))
            found[start, min(start + width, count)] = None
    return list(found)


def _window(
    problem: Precedence, sequence: list[int], start: int, stop: int, level: int
) -> Precedence:
    """The steps from `start` to `stop` alone; `level` bytes are live during the first."""
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
    # Whatever is beside the window's own values is live throughout it: the difference at its start.
    inner = problem.within(window, beyond, 0)
    return problem.within(window, beyond, level - inner.profile(range(len(window)))[0])
