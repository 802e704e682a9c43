"""Measurement of a program on a GPU: whole steps, and every launch of a step.

A launch is timed between two events on the stream of the step. Two steps are enqueued before the
timed launches, so that the host is ahead and does not cause gaps between events.
"""

from __future__ import annotations

import itertools
import statistics
from dataclasses import dataclass

from graphc.errors import OptionError
from graphc.runtime.gpu.backend import GpuBackend
from graphc.runtime.gpu.bind import BoundCall, BoundLaunch
from graphc.runtime.program import Program

ROUNDS = 3
"""Repetitions of every timed launch; the minimum is used."""

HEAD_START = 2
"""Number of steps that are enqueued before a round of timed launches."""


@dataclass(frozen=True, slots=True)
class LaunchTime:
    """The seconds of one launch.

    `step` and `op` are the index and the op of its node; `call` is the name of the kernel or the
    kind of call.
    """

    step: int
    op: str
    call: str
    seconds: float


def step_seconds(program: Program, steps: int = 30) -> float:
    """Measure the median seconds of a step on the inputs in the arena, without host copies.

    The program must have run at least two steps, so that a captured step is replayed. Raises
    `OptionError` for a program that does not run on a GPU.
    """
    backend = _backend(program)
    accelerator, stream = backend.accelerator, backend.stream
    with accelerator.active():
        marks = [accelerator.mark(stream)]
        for _ in range(steps):
            backend.repeat()
            marks.append(accelerator.mark(stream))
        accelerator.synchronize(marks[-1])
        pairs = itertools.pairwise(marks)
        return statistics.median(accelerator.seconds_between(*pair) for pair in pairs)


def launch_times(program: Program) -> list[LaunchTime]:
    """Measure the seconds of every launch of a step, in order, each launched individually.

    Raises `OptionError` for a program that does not run on a GPU.
    """
    backend = _backend(program)
    accelerator, stream = backend.accelerator, backend.stream
    launches = [(work, call) for work in backend.works for call in work.calls]
    best = [float("inf")] * len(launches)
    with accelerator.active():
        for _ in range(ROUNDS):
            for _ in range(HEAD_START):
                backend.repeat()
            marks = [accelerator.mark(stream)]
            for _, call in launches:
                accelerator.run(call, stream)
                marks.append(accelerator.mark(stream))
            accelerator.synchronize(marks[-1])
            for number, pair in enumerate(itertools.pairwise(marks)):
                best[number] = min(best[number], accelerator.seconds_between(*pair))
    return [
        LaunchTime(work.step, work.nodes[0].op.name, _named(call), seconds)
        for (work, call), seconds in zip(launches, best, strict=True)
    ]


def _named(call: BoundCall) -> str:
    return call.kernel.name if isinstance(call, BoundLaunch) else type(call).__name__


def _backend(program: Program) -> GpuBackend:
    backend = program.backend
    if not isinstance(backend, GpuBackend):
        raise OptionError(
            "timing of launches requires a GPU; compile the program with device='cuda'"
        )
    return backend
