"""Measurement of bytes and seconds in torch, by its profiler, its allocators and the clock."""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from graphc.errors import TorchError
from graphc.torch.private import profiler_enabled

MARK = "graphc/"
"""Prefix of the range names that are passed to the profiler."""


def measured_peak(
    run: Callable[[], object],
    held: Iterable[torch.Tensor] = (),
    reserve_bytes: int = 0,
    device: torch.device | None = None,
) -> int:
    """Return the peak bytes during `run`: those of `held` before it, plus the most that it adds.

    On a CPU, every allocation and release of torch's allocator counts, including workspaces. On a
    GPU, the bytes that the caching allocator hands out count. `held` should include parameters,
    buffers, inputs and existing ``.grad`` tensors.
    """
    before = storage_bytes(held) + reserve_bytes
    if device is not None and device.type == "cuda":
        return before + peak_on_gpu(run, device).allocated
    return before + peaks([run])[0]


def peaks(runs: Iterable[Callable[[], object]]) -> list[int]:
    """Return the peak bytes that each run adds on the CPU.

    Creating a run, and freeing its result, do not count. All runs share one recording, because
    starting one takes longer than most runs.
    """
    number = -1
    with recording() as found:
        for number, run in enumerate(runs):
            with marked(number):
                result = run()
            del result, run
    return [found.most(each) for each in range(number + 1)]


class Recording:
    """Allocations and releases on the CPU in order of time, and marked ranges."""

    def __init__(self) -> None:
        self.changes: list[tuple[int, int]] = []
        """Pairs of a time and a change in bytes."""
        self.ranges: dict[str, tuple[int, int]] = {}

    def most(self, name: object) -> int:
        """Return the peak bytes of a range, relative to its beginning."""
        begin, end = self.ranges[str(name)]
        live = most = 0
        for at, change in self.changes[bisect_left(self.changes, (begin,)) :]:
            if at > end:
                break
            live += change
            most = max(most, live)
        return most


def marked(name: object) -> AbstractContextManager[object]:
    """Return a context that marks a range of a recording; names must be unique."""
    made: AbstractContextManager[object] = record_function(f"{MARK}{name}")
    return made


class IncompleteError(TorchError):
    """A recording of torch's profiler lost events, which may happen on a busy machine."""


Found = TypeVar("Found")


def until_complete(measured: Callable[[], Found], again: Callable[[], None] | None = None) -> Found:
    """Repeat a measurement until its recording is complete, and call `again` before each retry.

    Raises `IncompleteError` if the last of `RECORDINGS` attempts is incomplete.
    """
    for _ in range(RECORDINGS - 1):
        with suppress(IncompleteError):
            return measured()
        if again is not None:
            again()
    return measured()


RECORDINGS = 3
"""Maximum number of attempts for one measurement."""

SIGNED = 4096
"""Bytes allocated at both ends of a recording; it counts as complete if it contains both."""


def _sign(name: str) -> None:
    with marked(name):
        torch.empty(SIGNED, dtype=torch.uint8)


@contextmanager
def recording() -> Iterator[Recording]:
    """Record the events of torch's CPU allocator; they are available after the context ends.

    Raises `TorchError` if a profiler is running already, since this one would end it. Raises
    `IncompleteError` if events are lost.
    """
    if profiler_enabled():
        raise TorchError(
            "graphc measures bytes with torch's profiler, but a profiler is already running; "
            "plan and verify before it starts, and profile only the steps"
        )
    found = Recording()
    # A recording of several ranges needs the accumulated events of all of them.
    profiler = profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True)
    with _quiet_profiler(), profiler:
        _sign("begin")
        yield found
        _sign("end")
    for event in profiler.profiler.kineto_results.events():
        begin = event.start_ns()
        if event.name() == "[memory]":
            found.changes.append((begin, event.nbytes()))
        elif event.name().startswith(MARK):
            found.ranges[event.name()[len(MARK) :]] = (begin, begin + event.duration_ns())
    found.changes.sort(key=lambda change: change[0])
    signed = [found.most(name) for name in ("begin", "end") if name in found.ranges]
    if signed != [SIGNED, SIGNED]:
        raise IncompleteError(
            "torch's profiler, which measures bytes, has lost some events; try again"
        )
    del found.ranges["begin"], found.ranges["end"]


NO_MESSAGES = "6"
"""A log level of Kineto, the library of torch's profiler, above those of all its messages."""


@contextmanager
def _quiet_profiler() -> Iterator[None]:
    """Hide Kineto's messages on stderr, unless the user has set their level.

    Kineto reads its level once in a process, at the start of the first recording.
    """
    if "KINETO_LOG_LEVEL" in os.environ:
        yield
        return
    os.environ["KINETO_LOG_LEVEL"] = NO_MESSAGES
    try:
        yield
    finally:
        os.environ.pop("KINETO_LOG_LEVEL", None)


@dataclass(frozen=True)
class GpuPeak:
    """Peak bytes that a call adds on a GPU, by two statistics of torch's caching allocator.

    `allocated` counts whole blocks, as ``torch.cuda.max_memory_allocated`` does. `requested` counts
    the sizes that were requested. A block of more than 1 MiB may have up to 1 MiB more than its
    request: the allocator splits off larger remainders only. So `allocated` depends on the blocks
    that happen to be free, and `requested` does not.
    """

    allocated: int
    requested: int


def peak_on_gpu(run: Callable[[], object], device: torch.device) -> GpuPeak:
    """Return the peak bytes that a call adds on a GPU."""
    torch.cuda.synchronize(device)
    peak = since_now(device)
    run()
    torch.cuda.synchronize(device)
    return peak()


def since_now(device: torch.device) -> Callable[[], GpuPeak]:
    """Reset the peaks of a GPU's statistics, and return a function that returns them."""
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_stats(device)

    def peak() -> GpuPeak:
        now = torch.cuda.memory_stats(device)
        allocated, requested = (
            int(now.get(f"{kind}.all.peak", 0) - before.get(f"{kind}.all.current", 0))
            for kind in ("allocated_bytes", "requested_bytes")
        )
        # The allocator cudaMallocAsync does not count requests.
        return GpuPeak(allocated, requested if now.get("requested_bytes.all.peak") else allocated)

    return peak


GPU_BLOCK = 512
"""Bytes per block of torch's caching allocator."""


def in_blocks(count: int, device: torch.device) -> int:
    """Return the bytes that torch's allocator reserves for `count`: whole blocks on a GPU."""
    return -(-count // GPU_BLOCK) * GPU_BLOCK if device.type == "cuda" else count


def allocated_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes that torch's allocator reserves for a tensor's storage."""
    return in_blocks(int(tensor.untyped_storage().nbytes()), tensor.device)


def bytes_alone(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor in a dense storage of its own."""
    return in_blocks(tensor.numel() * tensor.element_size(), tensor.device)


def storage_bytes(tensors: Iterable[torch.Tensor], seen: set[int] | None = None) -> int:
    """Return the bytes of distinct storages that are not in `seen`, and add them to `seen`."""
    seen = set() if seen is None else seen
    total = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()._cdata
        total += 0 if storage in seen else allocated_bytes(tensor)
        seen.add(storage)
    return total


def memory_ranges(tensors: Iterable[torch.Tensor]) -> list[range]:
    """Return the address range of each tensor's storage; shared storages have equal ranges."""
    storages = ((each.untyped_storage().data_ptr(), allocated_bytes(each)) for each in tensors)
    return [range(begin, begin + count) for begin, count in storages]


def bytes_of_ranges(ranges: Iterable[range]) -> int:
    """Return the size of the union of the ranges."""
    total = end = 0
    for each in sorted(ranges, key=lambda each: each.start):
        total += max(0, each.stop - max(each.start, end))
        end = max(end, each.stop)
    return total


LEAST_RUNS, MOST_RUNS, ENOUGH = 5, 20, 0.02
"""Minimum and maximum number of timed runs; beyond the minimum, runs stop after these seconds."""


def seconds_of(run: Callable[[], Any], device: torch.device | None = None) -> float:
    """Return the minimum time of several runs after a warm-up; the minimum is least noisy."""
    run()
    times: list[float] = []
    while len(times) < LEAST_RUNS or (len(times) < MOST_RUNS and sum(times) < ENOUGH):
        _wait(device)
        started = time.perf_counter()
        run()
        _wait(device)
        times.append(time.perf_counter() - started)
    return min(times)


def _wait(device: torch.device | None) -> None:
    if device is not None and device.type == "cuda":
        torch.cuda.synchronize(device)
