"""Measurement of the link between the arena and host memory on this machine.

Of several copies in each direction, the fastest counts. One large copy gives the rate and one small
copy the latency. Large copies in both directions at once show whether the directions share the
link.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import numpy as np

from graphc.planner.host_link import HostLink
from graphc.runtime.gpu.accelerator import Accelerator

LARGE, SMALL = 2**26, 2**12
"""Bytes of the copies."""

ROUNDS = 5

SHARED = 0.75
"""Copies in both directions at once run concurrently if they take less than this fraction of the
time that they take one after the other."""

Copies = Callable[[int, bool, bool], float]
"""Copies bytes to the host, to the device, or both at once, and returns the seconds."""


def measured_link(copies: Copies) -> HostLink:
    """Return the link that the seconds of copies describe."""

    def best(size: int, out: bool, back: bool) -> float:
        return min(copies(size, out, back) for _ in range(1 + ROUNDS))

    out, back = best(LARGE, True, False), best(LARGE, False, True)
    latency = min(best(SMALL, True, False), best(SMALL, False, True), out / 2, back / 2)
    both = best(LARGE, True, True)
    return HostLink(
        to_host=_rate(out - latency),
        to_device=_rate(back - latency),
        latency=latency,
        both_ways=both < SHARED * (out + back),
    )


def cpu_link() -> HostLink:
    """Measure copies between two parts of memory, with a thread for each direction."""
    memory = [np.ones(LARGE, np.uint8) for _ in range(4)]

    def copies(size: int, out: bool, back: bool) -> float:
        pairs = [memory[:2]] * out + [memory[2:]] * back
        threads = [
            threading.Thread(target=np.copyto, args=(target[:size], source[:size]))
            for target, source in pairs[1:]
        ]
        begin = time.perf_counter()
        for thread in threads:
            thread.start()
        target, source = pairs[0]
        np.copyto(target[:size], source[:size])
        for thread in threads:
            thread.join()
        return time.perf_counter() - begin

    return measured_link(copies)


def gpu_link(accelerator: Accelerator) -> HostLink:
    """Measure copies between a GPU and pinned memory, with a stream for each direction.

    Raises `ArenaError` if the memory cannot be allocated.
    """
    with accelerator.active():
        streams = [accelerator.stream() for _ in range(2)]
        address = accelerator.allocate(2 * LARGE)
        host = accelerator.pinned(2 * LARGE)

        def copies(size: int, out: bool, back: bool) -> float:
            main, other = streams
            begin = accelerator.mark(main)
            accelerator.wait(other, begin)
            if out:
                accelerator.download(host[:size], address, main)
            if back:
                accelerator.upload(address + LARGE, host[LARGE : LARGE + size], other)
            accelerator.wait(main, accelerator.record(other))
            end = accelerator.mark(main)
            accelerator.synchronize(end)
            return accelerator.seconds_between(begin, end)

        return measured_link(copies)


def _rate(seconds: float) -> float:
    """Return the bytes per second of a large copy, with three digits."""
    rate = LARGE / max(seconds, 1e-12)
    return float(f"{rate:.3g}")
