"""compile(): the whole pipeline in plain order."""

from __future__ import annotations

import gc
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from graphc.errors import OptionError, choose
from graphc.ir import builder
from graphc.ir.graph import Graph, Value
from graphc.ir.plan import ALIGNMENT, ALLOCATE, RECOMPUTE, Allocate, MemoryPlan, Recompute
from graphc.ir.text import format_graph
from graphc.optim import Optimizer
from graphc.passes.allocate import allocate as allocate_graph
from graphc.passes.check_plan import check_plan
from graphc.passes.gradient import MirrorCount, gradient
from graphc.passes.pipeline import FORWARD, TRAINING, Dump, run_passes
from graphc.runtime.program import Program

DEVICES = ("cpu", "auto")


def compile(
    loss: Value | None = None,
    *,
    outputs: Sequence[Value] | Mapping[str, Value] = (),
    optimizer: Optimizer | None = None,
    recompute: Recompute = "none",
    allocate: Allocate = "packed",
    alignment: int = ALIGNMENT,
    device: str = "cpu",
    seed: int = 0,
    poison: bool = False,
    check_finite: bool = False,
    dump: str | os.PathLike[str] | None = None,
) -> Program:
    """Plan a network and bind it to one arena, ready to step.

    With an `optimizer` a step trains: it computes the loss, its gradients and the updates of all
    trainable parameters. Without one it only computes the outputs. `outputs` may be given beside
    the loss or alone, as a mapping, or as a sequence that is named ``output0``, ``output1``, ...

    `recompute` is ``none`` or ``mirror`` (copies where `graphc.mirror` allows them); `allocate` is
    one of ``none``, ``inplace``, ``sharing``, ``packed``. `seed` fixes the initial parameters.
    `poison` and `check_finite` are for debugging, see `Program`. `dump` names a folder for the
    graph after every pass. Raises `OptionError` for an unknown choice.
    """
    choose("device", device, DEVICES)
    memory_plan = plan(
        loss,
        outputs=outputs,
        optimizer=optimizer,
        recompute=recompute,
        allocate=allocate,
        alignment=alignment,
        dump=dump,
    )
    return Program(memory_plan, seed=seed, poison=poison, check_finite=check_finite)


def plan(
    loss: Value | None = None,
    *,
    outputs: Sequence[Value] | Mapping[str, Value] = (),
    optimizer: Optimizer | None = None,
    recompute: Recompute = "none",
    allocate: Allocate = "packed",
    alignment: int = ALIGNMENT,
    dump: str | os.PathLike[str] | None = None,
) -> MemoryPlan:
    """The memory plan of `compile` alone: no arena is allocated, so any size can be planned."""
    started = time.perf_counter()
    choose("recompute", recompute, RECOMPUTE)
    choose("allocate", allocate, ALLOCATE)
    if alignment < 1 or alignment & (alignment - 1):
        raise OptionError(f"alignment must be a power of two, got {alignment!r}")
    dumps = Dump(Path(dump) if dump is not None else None)

    with _collection_paused():
        memory_plan = _plan(
            _named_outputs(loss, outputs), optimizer, recompute, allocate, alignment, dumps
        )
    seconds = time.perf_counter() - started
    return replace(memory_plan, planning_seconds=seconds)


@contextmanager
def _collection_paused() -> Iterator[None]:
    """Planning makes many lasting objects and hardly a cycle; to search for cycles costs time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _plan(
    outputs: Mapping[str, Value],
    optimizer: Optimizer | None,
    recompute: Recompute,
    allocate: Allocate,
    alignment: int,
    dumps: Dump,
) -> MemoryPlan:
    traced = builder.trace(outputs)
    dumps.write("forward", lambda: format_graph(traced))
    graph = run_passes(traced, FORWARD, dumps)
    if optimizer is not None:
        graph = run_passes(training_graph(graph, optimizer, recompute), TRAINING, dumps)
    memory_plan = allocate_graph(graph, allocate, recompute, alignment)
    check_plan(memory_plan)
    dumps.write("plan", lambda: str(memory_plan))
    return memory_plan


def training_graph(forward: Graph, optimizer: Optimizer, recompute: Recompute) -> Graph:
    """The forward graph with gradients and the updates of all trainable parameters."""
    loss = forward.outputs.get("loss")
    if loss is None:
        raise OptionError("an optimizer needs a loss; pass it as the first argument of compile")
    trained = [state for state in forward.states if state.trainable]
    if not trained:
        raise OptionError("an optimizer needs trainable parameters, and the loss depends on none")
    count: MirrorCount | None = (lambda node: node.mirror) if recompute == "mirror" else None
    with builder.in_phase("update"):
        updater = optimizer.begin()
    gradients = gradient(loss, trained, count, forward.kept)
    updates = []
    for state, value in zip(trained, gradients, strict=True):
        with builder.in_phase("update", state.name.rpartition("/")[0]):
            updates.append(updater.update(state, value))
    with builder.in_phase("update"):
        updates += updater.finish()
    return builder.trace(forward.outputs, updates)


def _named_outputs(
    loss: Value | None, outputs: Sequence[Value] | Mapping[str, Value]
) -> dict[str, Value]:
    named = (
        dict(outputs)
        if isinstance(outputs, Mapping)
        else {f"output{index}": value for index, value in enumerate(outputs)}
    )
    if loss is not None:
        named = {"loss": loss, **named}
    if not named:
        raise OptionError("compile needs a loss or outputs")
    for name, value in named.items():
        if not isinstance(value, Value):
            raise OptionError(f"{name} must be a graphc value, got {value!r}")
    return named
