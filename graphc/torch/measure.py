"""Bytes and seconds of running things in torch, as its allocators and the clock tell them."""

from __future__ import annotations

import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from graphc.errors import TorchError

MARK = "graphc/"
"""Begins the names of the ranges that the profiler is told."""


def measured_peak(
    run: Callable[[], object],
    held: Iterable[torch.Tensor] = (),
    reserve_bytes: int = 0,
    device: torch.device | None = None,
) -> int:
    """Bytes of the storages of `held`, which live before `run`, and the most that it adds to them.

    On a CPU every allocation and release of torch's allocator counts, of workspaces, too; on a GPU
    the bytes that its caching allocator hands out. A caller holds parameters, buffers, inputs and
    those ``.grad`` that are there already.
    """
    before = storage_bytes(held) + reserve_bytes
    if device is not None and device.type == "cuda":
        return before + _peak_on_gpu(run, device)
    return before + peaks([run])[0]


def peaks(runs: Iterable[Callable[[], object]]) -> list[int]:
    """The most bytes that each run adds on the CPU; what makes a run, and its result, do not count.

    All in one recording, whose begin takes longer than most runs.
    """
    number = -1
    with recording() as found:
        for number, run in enumerate(runs):
            with marked(number):
                result = run()
            del result, run
    return [found.most(each) for each in range(number + 1)]


class Recording:
    """Allocations and releases on the CPU in their order, and the ranges that were marked."""

    def __init__(self) -> None:
        self.changes: list[tuple[int, int]] = []
        """When, and by how many bytes."""
        self.ranges: dict[str, tuple[int, int]] = {}

    def most(self, name: object) -> int:
        """The most bytes that a range adds to what was there when it began."""
        begin, end = self.ranges[str(name)]
        live = most = 0
        for at, change in self.changes[bisect_left(self.changes, (begin,)) :]:
            if at > end:
                break
            live += change
            most = max(most, live)
        return most


def marked(name: object) -> AbstractContextManager[object]:
    """A range of a recording; each has a name of its own."""
    made: AbstractContextManager[object] = record_function(f"{MARK}{name}")
    return made


class IncompleteError(TorchError):
    """A recording of torch's profiler lacks what happened in it, as a busy machine's may."""


Found = TypeVar("Found")


def until_complete(measured: Callable[[], Found], again: Callable[[], None] | None = None) -> Found:
    """What is measured, in a few recordings where the first are incomplete; `again` between them.

    Raises `IncompleteError` where the last one is.
    """
    for _ in range(RECORDINGS - 1):
        with suppress(IncompleteError):
            return measured()
        if again is not None:
            again()
    return measured()


RECORDINGS = 3
"""So many are made at most of one thing."""

SIGNED = 4096
"""Bytes that are allocated where a recording begins and ends: it is complete where it has them."""


def _sign(name: str) -> None:
    with marked(name):
        torch.empty(SIGNED, dtype=torch.uint8)


@contextmanager
def recording() -> Iterator[Recording]:
    """What torch's allocator for the CPU does, known behind the end.

    Raises `TorchError` where a profiler runs already, which this one would end, and
    `IncompleteError`.
    """
    if torch.autograd._profiler_enabled():
        raise TorchError(
            "bytes are measured by torch's profiler, and one is running here; plan and verify "
            "before it begins, and profile the steps alone"
        )
    found = Recording()
    # One recording of several ranges needs the events of all of them.
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True) as told:
        _sign("begin")
        yield found
        _sign("end")
    for event in told.profiler.kineto_results.events():
        begin = event.start_ns()
        if event.name() == "[memory]":
            found.changes.append((begin, event.nbytes()))
        elif event.name().startswith(MARK):
            found.ranges[event.name()[len(MARK) :]] = (begin, begin + event.duration_ns())
    found.changes.sort(key=lambda change: change[0])
    signed = [found.most(name) for name in ("begin", "end") if name in found.ranges]
    if signed != [SIGNED, SIGNED]:
        raise IncompleteError(
            "torch's profiler, which measures bytes, has lost a part of what it saw; try again"
        )
    del found.ranges["begin"], found.ranges["end"]


def _peak_on_gpu(run: Callable[[], object], device: torch.device) -> int:
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    run()
    torch.cuda.synchronize(device)
    return int(torch.cuda.max_memory_allocated(device) - before)


GPU_BLOCK = 512
"""Of so many bytes are the blocks of torch's caching allocator."""


def in_blocks(count: int, device: torch.device) -> int:
    """Bytes that torch's allocator hands out for so many: on a GPU, whole blocks."""
    return -(-count // GPU_BLOCK) * GPU_BLOCK if device.type == "cuda" else count


def allocated_bytes(tensor: torch.Tensor) -> int:
    """Bytes that torch's allocator hands out for a tensor's storage."""
    return in_blocks(int(tensor.untyped_storage().nbytes()), tensor.device)


def storage_bytes(tensors: Iterable[torch.Tensor], seen: set[int] | None = None) -> int:
    """Bytes of the tensors' storages, each of which counts once, and not if it has been `seen`."""
    seen = set() if seen is None else seen
    total = 0
    for tensor in tensors:
        storage = tensor.untyped_storage()._cdata
        total += 0 if storage in seen else allocated_bytes(tensor)
        seen.add(storage)
    return total


def memory_ranges(tensors: Iterable[torch.Tensor]) -> list[range]:
    """The addresses of the tensors' storages; those of shared ones are alike."""
    storages = ((each.untyped_storage().data_ptr(), allocated_bytes(each)) for each in tensors)
    return [range(begin, begin + count) for begin, count in storages]


def bytes_of_ranges(ranges: Iterable[range]) -> int:
    """Bytes of memory that lie in any of the ranges."""
    total = end = 0
    for each in sorted(ranges, key=lambda each: each.start):
        total += max(0, each.stop - max(each.start, end))
        end = max(end, each.stop)
    return total


LEAST_RUNS, MOST_RUNS, ENOUGH = 5, 20, 0.02
"""How often something is timed: more than the least only as long as that takes few seconds."""


def seconds_of(run: Callable[[], Any], device: torch.device | None = None) -> float:
    """The least time of several runs, after one that warms up: others may be in the way of some."""
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
