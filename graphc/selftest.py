"""Checks of an installation: small networks on a device against float64 on the CPU.

Every network is trained for a few steps in float64 by NumPy's functions alone, the reference. The
device under test must come close to it in float32, and must give the same bits under every
strategy. On a GPU, captured steps must equal steps that are launched kernel by kernel, and the
driver's free memory must not change from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from graphc.byte_sizes import format_bytes
from graphc.compiler.compile import compile
from graphc.ir.graph import Value
from graphc.models.gpt2 import gpt2
from graphc.models.lstm import lstm
from graphc.models.mlp import mlp
from graphc.models.resnet import preact_resnet
from graphc.optim import SGD
from graphc.plans.memory_plan import COMPARED, RECOMPUTE
from graphc.runtime.bind import find
from graphc.runtime.feeds import random_feeds
from graphc.runtime.gpu.cuda import LIBRARY_BYTES
from graphc.runtime.program import Program

Array = np.ndarray[Any, np.dtype[Any]]

SEED = 5
STEPS = 3

EXACT, NARROW = 1e-3, 5e-2
"""Tolerances. `EXACT` is for float32, relative to the largest change of an array over all steps.
`NARROW` is for the loss in bf16, relative to the loss."""

ROUNDING = 1e-3
"""Storing a number rounds it, so this fraction of an array's largest number is added to its change.
`EXACT` of that is eight units in the last place of float32."""

MEMORY_STEPS = 20
"""Number of steps during which the driver's free memory must not change."""

DRIVER_GRANULE = 2 * 2**20
"""The page size, in bytes, in which the driver allocates memory."""

NETWORKS: Mapping[str, Callable[[str], Value]] = {
    "mlp": lambda dtype: mlp(layers=3, hidden=32, inputs=20, batch=8, dtype=dtype),
    "gpt2": lambda dtype: gpt2(
        layers=2, width=32, heads=2, seq_len=16, batch=2, vocab=31, dtype=dtype
    ),
    "preact_resnet": lambda dtype: preact_resnet(11, batch=2, image=8, dtype=dtype),
    "lstm": lambda dtype: lstm(
        seq_len=3, batch=2, layers=2, hidden=8, inputs=5, classes=7, dtype=dtype
    ),
}
"""Name → a function that builds a small network for a dtype. The networks cover different kinds of
ops."""

STRATEGIES: tuple[Mapping[str, Any], ...] = (
    *({"allocate": name} for name in COMPARED if name != "packed"),
    *({"recompute": name} for name in RECOMPUTE if name != "none"),
    {"reorder": False},
    {"poison": True},
)
"""Options that must not change any bit of the results."""

GPU_STRATEGIES: tuple[Mapping[str, Any], ...] = ({"cuda_graph": False}, {"streams": 3})


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison: its network, its subject, whether it passed, and the observed result."""

    network: str
    subject: str
    passed: bool
    found: str


@dataclass(frozen=True, slots=True)
class _Run:
    """A trained program: its last loss and all states by name, and their changes over the steps."""

    program: Program
    arrays: Mapping[str, Array]
    changes: Mapping[str, Array]


def checks(device: str) -> Iterator[Check]:
    """Run all checks of a device, one after the other.

    A check that raises an exception counts as failed, and the result contains the exception's
    message. Raises `GpuUnavailable` if the device is missing.
    """
    on_gpu = find(device) is not None
    for name, network in NETWORKS.items():
        for subject, work in _works(network, device, on_gpu):
            try:
                passed, found = work()
            except Exception as error:  # any library may fail; the other checks continue
                passed, found = False, f"{type(error).__name__}: {error}"
            yield Check(name, subject, passed, found)


_Work = tuple[str, Callable[[], tuple[bool, str]]]


def _works(network: Callable[[str], Value], device: str, on_gpu: bool) -> Iterator[_Work]:
    """Yield the subject of each check of a network, and the function that performs the check."""
    reference = cache(lambda: _trained(network("float64"), "cpu", kernels="numpy"))

    def trained(**options: Any) -> _Run:
        return _trained(network("float32"), device, **options)

    plain = cache(trained)
    yield "float32 against float64", lambda: _near(plain(), reference(), EXACT)
    if on_gpu:
        own = {"cudnn": False}
        yield "own kernels against float64", lambda: _near(trained(**own), reference(), EXACT)
        yield "bf16 against float64", lambda: _near_loss(trained(precision="bf16"), reference())
        yield "driver memory", lambda: _memory(network("float32"), device)
        yield "libraries", lambda: _libraries(plain().program)
    for options in (*STRATEGIES, *(GPU_STRATEGIES if on_gpu else ())):
        subject = ", ".join(f"{name}={value}" for name, value in options.items())
        yield subject, lambda options=options: _same(trained(**options), plain())  # type: ignore[misc]


def _trained(loss: Value, device: str, **options: Any) -> _Run:
    program = compile(loss, optimizer=SGD(0.05), device=device, seed=SEED, **options)
    before = {name: np.asarray(array, np.float64) for name, array in program.states.items()}
    found = None
    for step in range(STEPS):
        found = program.step(_feeds(program, step))["loss"]
    arrays = {"loss": np.asarray(found), **program.states}
    changes = {
        name: np.asarray(array, np.float64) - before.get(name, 0.0)
        for name, array in arrays.items()
    }
    return _Run(program, arrays, changes)


def _feeds(program: Program, step: int) -> dict[str, Array]:
    """Return random feeds rounded to float32, which are the same for every precision."""
    return {
        source.name: array.astype(np.float32).astype(array.dtype)
        if array.dtype.kind == "f"
        else array
        for source, array in random_feeds(program.graph, step).items()
    }


def _near(run: _Run, reference: _Run, tolerance: float) -> tuple[bool, str]:
    """Compare the changes of arrays over all steps with those of the reference run.

    Errors are relative to the largest change of each array, so small gradients count as much as
    large ones.
    """
    worst, where = 0.0, "loss"
    for name, change in run.changes.items():
        expected = reference.changes[name]
        reach = _largest(expected) + ROUNDING * _largest(reference.arrays[name])
        apart = _largest(change - expected)
        error = apart / reach if reach else apart
        if not error <= worst:  # also for NaN
            worst, where = error, name
    return worst <= tolerance, f"largest error {worst:.1e} ({where})"


def _largest(array: Array) -> float:
    return float(np.abs(np.asarray(array, np.float64)).max(initial=0.0))


def _near_loss(run: _Run, reference: _Run) -> tuple[bool, str]:
    found, expected = float(run.arrays["loss"]), float(reference.arrays["loss"])
    error = abs(found - expected) / abs(expected)
    return error <= NARROW, f"error of the loss {error:.1e}"


def _same(run: _Run, other: _Run) -> tuple[bool, str]:
    changed = [n for n, a in run.arrays.items() if a.tobytes() != other.arrays[n].tobytes()]
    if changed:
        return False, f"{len(changed)} of {len(run.arrays)} arrays differ, first {changed[0]}"
    return True, "same bits"


def _memory(loss: Value, device: str) -> tuple[bool, str]:
    """Check the driver's free memory before and after binding, and over steps after the capture."""
    before = _free_bytes(device)
    run = _trained(loss, device)
    program = run.program
    bound = _free_bytes(device)
    for step in range(MEMORY_STEPS):
        program.step(_feeds(program, step))
    lost, taken = bound - _free_bytes(device), before - bound
    limit = program.arena_bytes + LIBRARY_BYTES + DRIVER_GRANULE
    return lost == 0 and taken <= limit, (
        f"{format_bytes(max(0, taken))} taken, arena {format_bytes(program.arena_bytes)}, "
        f"{lost} bytes lost in {MEMORY_STEPS} steps"
    )


def _free_bytes(device: str) -> int:
    gpu = find(device)
    assert gpu is not None, "only GPUs have a driver"
    return gpu.free_bytes


def _libraries(program: Program) -> tuple[bool, str]:
    """Report the library calls of a step; requests that a library declines are not failures."""
    report = program.report
    calls = ", ".join(f"{count} {kind}" for kind, count in report.calls.items())
    declined = "; ".join(report.declined)
    return True, calls + (f"; declined: {declined}" if declined else "")
