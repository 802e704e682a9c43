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
from graphc.ir.graph import Graph, State, Value
from graphc.ir.ops.shape import copy
from graphc.ir.plan import ALIGNMENT, ALLOCATE, RECOMPUTE, Allocate, MemoryPlan, Recompute
from graphc.ir.text import format_graph
from graphc.ir.types import float32, float64
from graphc.optim import Optimizer
from graphc.passes.allocate import allocate as allocate_graph
from graphc.passes.check_plan import check_plan
from graphc.passes.gradient import MirrorCount, gradient
from graphc.passes.modes import count_step, to_inference, training_effects
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
    training: bool | None = None,
    alignment: int = ALIGNMENT,
    device: str = "cpu",
    seed: int = 0,
    poison: bool = False,
    check_finite: bool = False,
    dump: str | os.PathLike[str] | None = None,
) -> Program:
    """Plan a network and bind it to one arena, ready to step.

    With an `optimizer` a step trains: it computes the loss, its gradients and the updates of all
    trainable parameters. Without one it only computes the outputs. `training` says whether batch
    norm uses the batch's statistics and dropout drops; by default it does where there is an
    optimizer, or a gradient among the outputs. `outputs` may be given beside
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
        training=training,
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
    training: bool | None = None,
    alignment: int = ALIGNMENT,
    dump: str | os.PathLike[str] | None = None,
) -> MemoryPlan:
    """The memory plan of `compile` alone: no arena is allocated, so any size can be planned."""
    started = time.perf_counter()
    choose("recompute", recompute, RECOMPUTE)
    choose("allocate", allocate, ALLOCATE)
    if not isinstance(alignment, int) or alignment < 16 or alignment & (alignment - 1):
        raise OptionError(f"alignment must be a power of two from 16 up, got {alignment!r}")
    if optimizer is not None and (isinstance(optimizer, type) or not hasattr(optimizer, "begin")):
        raise OptionError(
            f"optimizer must be an object such as graphc.optim.Adam(1e-3), got {optimizer!r}"
        )
    dumps = Dump(Path(dump) if dump is not None else None)

    with _collection_paused():
        memory_plan = _plan(
            _named_outputs(loss, outputs),
            optimizer,
            training,
            recompute,
            allocate,
            alignment,
            dumps,
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
    training: bool | None,
    recompute: Recompute,
    allocate: Allocate,
    alignment: int,
    dumps: Dump,
) -> MemoryPlan:
    if optimizer is not None:
        outputs = _read_before_updates(outputs)
    traced = builder.trace(outputs)
    dumps.write("forward", lambda: format_graph(traced))
    if training is None:
        training = optimizer is not None or any(n.phase == "gradient" for n in traced.nodes)
    if not training:
        traced = to_inference(traced)
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
    double = any(state.type.dtype == float64 for state in trained)
    with builder.in_phase("update"):
        updater = optimizer.begin(float64 if double else float32)
    gradients = gradient(loss, trained, count, forward.kept)
    updates = training_effects(forward)
    for state, value in zip(trained, gradients, strict=True):
        with builder.in_phase("update", state.name.rpartition("/")[0]):
            updates.append(updater.update(state, value))
    graph = builder.trace(forward.outputs, updates)
    if builder.STEP in graph.states:
        graph = builder.trace(forward.outputs, [*updates, count_step()])
    return replace(graph, kept=forward.kept)


def _named_outputs(
    loss: Value | None, outputs: Sequence[Value] | Mapping[str, Value]
) -> dict[str, Value]:
    if isinstance(outputs, Mapping):
        named = dict(outputs)
    else:
        values = builder.as_values("outputs", outputs)
        named = {f"output{index}": value for index, value in enumerate(values)}
    if loss is not None:
        if "loss" in named:
            raise OptionError("'loss' is the name of the loss; give the other output another name")
        named = {"loss": loss, **named}
    if not named:
        raise OptionError("compile needs a loss or outputs")
    for name, value in named.items():
        builder.check_name(name)
        builder.as_value(f"output {name!r}", value)
    return named


def _read_before_updates(outputs: Mapping[str, Value]) -> dict[str, Value]:
    """Outputs that are states, or views of one, as copies: the update comes before the copy out."""
    return {name: copy(v) if _shows_a_state(v) else v for name, v in outputs.items()}


def _shows_a_state(value: Value) -> bool:
    while value.node is not None and value.node.op.views is not None:
        value = value.node.inputs[0]
    return isinstance(value, State)
