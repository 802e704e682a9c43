"""Verification of a plan: measures the peak of one step, and compares its bits with torch's."""

from __future__ import annotations

import gc
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from graphc.errors import TorchError
from graphc.torch.budget.options import Given
from graphc.torch.budget.plan.libraries import library_workspaces
from graphc.torch.budget.plan.planned import Planned
from graphc.torch.budget.plan.steps import device_of
from graphc.torch.budget.report.report import Report
from graphc.torch.budget.report.verified import Verified, WorstNode
from graphc.torch.budget.trace.assumptions import Assumptions
from graphc.torch.budget.trace.branches import Tracing, assuming
from graphc.torch.budget.trace.held import arrays_in
from graphc.torch.budget.trace.joint import draws
from graphc.torch.budget.trace.measure import (
    Recording,
    bytes_of_ranges,
    marked,
    memory_ranges,
    peak_on_gpu,
    recording,
    since_now,
    until_complete,
)
from graphc.torch.budget.trace.names import arguments_of, module_path
from graphc.torch.budget.trace.restored import as_before, random_states
from graphc.torch.budget.trace.settings import context_of
from graphc.torch.budget.trace.step import Step
from graphc.torch.budget.trace.tracing import traced_as_here

STEP = "step"
"""Name of the range of a recording that covers the whole step."""

ROUNDING = 16
"""Tolerated difference from eager torch, in square roots of the type's machine epsilon.

The difference is relative to the largest value of a tensor.
"""

MOST_RUNS = 8
"""Maximum number of runs of ``aot_eager``.

It runs again while a tensor differs from the plan's and all its runs agree on that tensor. On a
GPU, atomic additions change rounded values in some runs only.
"""

Bits = dict[str, dict[str, torch.Tensor]]
"""Results of a step by kind and name."""


def verified(step: Step, assumptions: Assumptions, given: Given) -> Verified:
    """Verify one step under its assumptions; implements `PlannedStep.verify`.

    Raises `TorchError` if the measured peak is not the planned one.
    """
    found = compared(step, assumptions, given)
    if not found.held:
        raise TorchError(
            "the measured peak of this step is not the planned one, which is a fault of graphc; "
            f"do not rely on the budget here, and report the module:\n{found}"
        )
    return found


def compared(step: Step, assumptions: Assumptions, given: Given) -> Verified:
    """Run and measure one step, and compare it with ``aot_eager`` and eager torch."""
    step.plan(*given)  # first, because its errors are explained, unlike those of the reference

    def reference(branches: str, /, *args: Any, **kwargs: Any) -> Any:
        assert branches != "unknown"  # Dynamo caches by the code and this guard
        return step.call_unplanned(args, kwargs)

    def eager(*args: Any, **kwargs: Any) -> Any:
        # Around the trace as in a step: inside it, torch traces other backward ops.
        with context_of(step.step_options.autocast):
            return compiled(outcomes.label, *args, **kwargs)

    outcomes = assumptions.current
    compiled = torch.compile(reference, backend="aot_eager", fullgraph=True, dynamic=False)

    def reference_bits() -> Bits:
        with traced_as_here(), assuming(Tracing(outcomes)), assumptions.masks(step, given):
            return _bits(step, given, _run(eager, given))

    with as_before(step, given) as again, torch.enable_grad():
        wanted = reference_bits()
        again()
        plain, eager_error = _eager(step, given)
        again()
        _run(step, given)  # a warm-up, because some work happens once, such as compiling backward
        again()
        there = _ranges_there(step, given)
        gc.collect()  # so that no garbage is freed during the measurement
        peak, remainder, allocated, outputs = _measured(step, given, again)
        found = _bits(step, given, outputs)

        def repeated() -> Bits:
            again()
            return reference_bits()

        different, varying = _apart(found, wanted, repeated)
    planned, graph_given = step.ran
    there += graph_given + _ranges_of_constants(planned)
    # The warm-up has allocated the workspaces that libraries keep.
    kept = step.step_options.reserve + library_workspaces(planned.torch_steps.joint, None)
    if isinstance(planned.report, Report):
        kept += planned.report.held.unpadded  # the arguments of a planned step may be padded
    peak_bytes, is_compiled = planned.peak_bytes, step.step_options.is_compiled
    if not is_compiled:
        unlike = _unlike(wanted, plain)
    else:  # inductor draws other random numbers than eager torch
        is_drawn = any(draws(each.node) for each in planned.torch_steps.joint.steps)
        unlike = {} if is_drawn else _unlike(found, plain, is_compiled)
    return Verified(
        peak_bytes,
        bytes_of_ranges(there) + kept + peak,
        different,
        None if is_compiled else _worst(planned, allocated),
        {} if eager_error else unlike,
        eager_error,
        varying,
        remainder,
        peak_bytes if is_compiled else planned.torch_steps.joint.incoming.spare,
        is_compiled,
    )


def _eager(step: Step, given: Given) -> tuple[Bits, str]:
    """Return the results of eager torch, or its error.

    Eager torch refuses some modules that torch.compile runs, such as those that modify a buffer
    after its use.
    """
    try:
        return _bits(step, given, _run(step.unplanned, given)), ""
    except RuntimeError as error:
        return {}, str(error).partition("\n")[0]


def _unlike(found: Bits, wanted: Bits, is_compiled: bool = False) -> dict[str, float]:
    """Return the floating-point tensors that differ by more than rounding.

    Differences are relative to the largest value of a tensor, and for a compiled step to that of
    all tensors of a kind: inductor rounds sums otherwise that are 0 in exact arithmetic.
    """
    differences: dict[str, float] = {}
    for kind, tensors in wanted.items():
        largest = max(map(_largest, tensors.values()), default=0.0) if is_compiled else None
        for name, tensor in tensors.items():
            difference = _difference(found[kind].get(name), tensor, largest)
            if difference > 0:
                differences[f"{kind} {name}"] = difference
    return differences


def _largest(tensor: torch.Tensor) -> float:
    """Return the largest absolute value of a floating-point tensor, else 0."""
    is_compared = tensor.is_floating_point() and tensor.numel()
    return tensor.abs().amax().double().item() if is_compared else 0.0


def _difference(found: torch.Tensor | None, wanted: torch.Tensor, largest: float | None) -> float:
    """Return the difference relative to the largest value, or 0 if it is rounding."""
    if not wanted.is_floating_point() or not wanted.numel():
        return 0.0
    if found is None or found.shape != wanted.shape:
        return float("inf")
    largest = _largest(wanted) if largest is None else largest
    difference = (found.double() - wanted.double()).abs().nan_to_num().amax().item()
    relative = difference / largest if largest else difference
    return relative if relative > ROUNDING * torch.finfo(wanted.dtype).eps ** 0.5 else 0.0


def _ranges_there(step: Step, given: Given) -> list[range]:
    """Return the memory of parameters, buffers, arguments and ``.grad`` before a step."""
    leaves = tree_leaves(given)
    tensors = [*step.parameters(), *step.buffers()]
    tensors += [each for each in leaves if isinstance(each, torch.Tensor)]
    gradients = [each.grad for each in tensors if each.is_leaf and each.grad is not None]
    arrays = ((each.ctypes.data, each.nbytes) for each in arrays_in(leaves))
    found = [range(begin, begin + count) for begin, count in arrays]
    return found + memory_ranges([*tensors, *gradients])


def _ranges_of_constants(planned: Planned) -> list[range]:
    """Return the memory of the constants in a plan's graphs."""
    modules = planned.forward, planned.backward
    found = [
        operator.attrgetter(str(node.target))(module)
        for module in modules
        for node in module.graph.find_nodes(op="get_attr")
    ]
    return memory_ranges(each for each in found if isinstance(each, torch.Tensor))


def _run(call: Callable[..., Any], given: Given) -> list[torch.Tensor]:
    """Run a forward and a backward pass with gradients of ones, and return the outputs."""
    outputs = [
        each for each in tree_leaves(call(*given[0], **given[1])) if isinstance(each, torch.Tensor)
    ]
    learned = [each for each in outputs if each.requires_grad]
    if not learned:
        raise TorchError("no output of the module needs gradients, so there is no step to verify")
    torch.autograd.backward(learned, [torch.ones_like(each) for each in learned])
    return [each.detach() for each in outputs]


def _measured(
    step: Step, given: Given, again: Callable[[], None]
) -> tuple[int, int, dict[str, int], list[torch.Tensor]]:
    """Return the peak bytes that a step adds, the remainders of blocks among them, the bytes that
    each node adds, and the outputs.
    """
    outputs: list[torch.Tensor] = []

    def run() -> None:
        outputs[:] = _run(step, given)

    device = _gpu(step)
    if device is not None:
        peak = peak_on_gpu(run, device)
        again()
        found: dict[str, int] = {}
        with step.watched(lambda part, name: _watched_on_gpu(found, f"{part}/{name}", device)):
            run()
        return peak.allocated, peak.allocated - peak.requested, found, outputs
    record = until_complete(lambda: _recorded(step, run), again)
    return record.most(STEP), 0, {name: record.most(name) for name in record.ranges}, outputs


def _recorded(step: Step, run: Callable[[], None]) -> Recording:
    """Record the allocations of a step on the CPU, with a range for it and for each node."""
    watched = step.watched(lambda part, name: marked(f"{part}/{name}"))
    with watched, recording() as record, marked(STEP):
        run()
    return record


def _gpu(step: Step) -> torch.device | None:
    nodes = (each.node for each in step.plans[-1].torch_steps.joint.steps)
    return next((device for device in map(device_of, nodes) if device.type == "cuda"), None)


@contextmanager
def _watched_on_gpu(found: dict[str, int], name: str, device: torch.device) -> Iterator[None]:
    """Record the peak bytes that a node adds, by the statistics of the caching allocator."""
    peak = since_now(device)
    yield
    found[name] = peak().requested


def _worst(planned: Planned, allocated: dict[str, int]) -> WorstNode | None:
    """Return the node with the largest deviation, or None if all nodes allocate as planned."""
    found: WorstNode | None = None
    largest = 0
    for index, moment in enumerate(planned.replay.moments):
        part = "forward" if index < planned.replay.boundary else "backward"
        if moment.node is None:
            continue
        name, wanted = moment.node.name, moment.made + moment.workspace
        took = allocated.get(f"{part}/{name}", 0)
        if abs(took - wanted) > largest:
            largest = abs(took - wanted)
            found = WorstNode(name, module_path(moment.node), wanted, took)
    return found


def _bits(step: Step, given: Given, outputs: Sequence[torch.Tensor]) -> Bits:
    """Return copies of the results of a step."""
    leaves = ((n, x) for n, x in arguments_of(given) if isinstance(x, torch.Tensor) and x.is_leaf)
    gradients = {name: each.grad for name, each in (*step.named_parameters(), *leaves)}
    return {
        "outputs": {f"output {index}": each.clone() for index, each in enumerate(outputs)},
        "gradients": {name: each.clone() for name, each in gradients.items() if each is not None},
        "buffers": {name: each.clone() for name, each in step.named_buffers()},
        "random_state": dict(random_states()),
    }


def _different(found: Bits, wanted: Bits) -> dict[str, tuple[str, ...]]:
    return {
        kind: tuple(
            name
            for name in dict.fromkeys([*wanted[kind], *found[kind]])
            if not _same(found[kind].get(name), wanted[kind].get(name))
        )
        for kind in wanted
    }


def _apart(
    found: Bits, wanted: Bits, repeated: Callable[[], Bits]
) -> tuple[dict[str, tuple[str, ...]], dict[str, tuple[str, ...]]]:
    """Return the names of tensors with other bits, and of those that are not repeatable.

    `repeated` returns the bits of another run that had those of `wanted`.
    """
    different = _different(found, wanted)
    varying: dict[str, tuple[str, ...]] = {}
    for _ in range(MOST_RUNS - 1):
        if not any(different.values()):
            break
        for kind, names in _different(repeated(), wanted).items():
            if names:
                varying[kind] = tuple(dict.fromkeys((*varying.get(kind, ()), *names)))
        different = {
            kind: tuple(name for name in names if name not in varying.get(kind, ()))
            for kind, names in different.items()
        }
    return different, varying


def _same(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Return whether two tensors are bitwise equal; equal NaN bits count as equal."""
    if one is None or other is None or one.dtype != other.dtype or one.shape != other.shape:
        return False
    bits = (each.contiguous().flatten().view(torch.uint8) for each in (one, other))
    return bool(torch.equal(*bits))
