"""Seconds of steps that are taken in turn, so that none has the quieter machine.

Each step is timed behind one of its own that is not: what a framework leaves behind, such as memory
that is still being freed, or another's data in the caches, slows the next one's by up to a half.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from typing import Any

Step = Callable[[], Any]


def step_seconds(steps: Mapping[str, Step], count: int) -> dict[str, list[float]]:
    """Seconds by name of `count` steps, in alternating blocks of two whose second is timed."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(count):
        for name, step in steps.items():
            step()
            seconds[name].append(timed(step)[1])
    return seconds


def timed(call: Step) -> tuple[Any, float]:
    """What a call returns, and its seconds."""
    started = time.perf_counter()
    found = call()
    return found, time.perf_counter() - started


def measure(steps: Mapping[str, Step], count: int) -> dict[str, float]:
    """Median seconds by name."""
    return {name: statistics.median(s) for name, s in step_seconds(steps, count).items()}
