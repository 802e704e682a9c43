"""Measurement of the seconds and bytes of nodes in a joint graph, once per distinct node.

A node runs on generated operands with the types, shapes and strides of the graph. If it refuses
these, its time is estimated as that of copying its operands and results, without workspace. Nodes
are distinct by target and operands: two layers of one shape are measured once. Results are cached
in one file per device, version and settings of torch, so that the next plan has the same costs.
Estimates are not cached; the next process tries these nodes again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import operator
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves, tree_map

from graphc.errors import TorchError
from graphc.files import locked, write_atomically
from graphc.torch.budget.plan.steps import Measured, device_of, random_state
from graphc.torch.budget.trace.eager import EAGER, EAGER_BACKWARD, measured
from graphc.torch.budget.trace.joint import Joint, JointStep, has_effects, is_random, tensors_of
from graphc.torch.budget.trace.measure import (
    allocated_bytes,
    in_blocks,
    peak_on_gpu,
    peaks,
    seconds_of,
    until_complete,
)
from graphc.torch.budget.trace.refusals import CHECKS, called_op
from graphc.torch.budget.trace.runner import callable_of
from graphc.torch.private import disable_current_modes

NO_MEMORY = ("can't allocate memory", "not enough memory")
"""Messages of torch's CPU allocator, which raises no specific exception type."""


def measure(joint: Joint) -> dict[fx.Node, Measured]:
    """Return the cost of each computing node, from the user's cache or by running it.

    The random state and the contents of parameters do not change.
    """
    store = Store.of_device(_device(joint))
    keys = {step.node: key_of(step.node) for step in joint.steps if not has_effects(step.node)}
    missing = {key: node for node, key in keys.items() if key not in store.known}
    if missing:
        store.add(_run(list(missing), list(missing.values())))
    found = {node: store.known[key] for node, key in keys.items()}
    return {
        step.node: _fitting(step, found.get(step.node) or _not_run(step.node), joint)
        for step in joint.steps
    }


def workspaces_of(nodes: Sequence[fx.Node]) -> list[int]:
    """Return the workspace bytes of nodes, from the user's cache or by running them."""
    if not nodes:
        return []
    store = Store.of_device(device_of(nodes[0]))
    missing = {key_of(node): node for node in nodes if key_of(node) not in store.known}
    if missing:
        store.add(_run(list(missing), list(missing.values())))
    return [store.known[key_of(node)].workspace for node in nodes]


def known_peaks(joint: Joint, key: str, found: Callable[[], tuple[int, int]]) -> tuple[int, int]:
    """Return the peaks of two graphs for the device of a joint graph, from the user's cache or as
    `found` returns them."""
    store = Store.of_device(_device(joint))
    if key not in store.known:
        store.add({key: Measured(0.0, 0, found())})
    forward, backward = store.known[key].result_bytes
    return forward, backward


def fused(joint: Joint, costs: Mapping[fx.Node, Measured]) -> dict[fx.Node, Measured]:
    """Return the costs if pointwise ops are fused into kernels that use their results.

    Such an op then moves only the operands that no other pointwise op computes, and takes this
    share of its time.
    """
    pointwise = {node for node in costs if torch.Tag.pointwise in getattr(node.target, "tags", ())}

    def of(node: fx.Node) -> Measured:
        if node not in pointwise:
            return costs[node]
        reads = {value for each in node.all_input_nodes for value in joint.values[each]}
        from_memory = (joint.bytes[v] for v in reads if joint.base[v] not in pointwise)
        moved = sum(joint.bytes[value] for value in reads.union(joint.values[node]))
        return replace(costs[node], seconds=costs[node].seconds * sum(from_memory) / max(moved, 1))

    return {node: of(node) for node in costs}


def _not_run(node: fx.Node) -> Measured:
    """Return the assumed cost of a node with side effects, which must not run for measurement.

    Checks and writes into existing tensors cost nothing. Other ops are estimated.
    """
    called = called_op(node)
    if called in (EAGER, EAGER_BACKWARD):
        seconds, peak = measured(node)
        sizes = tuple(map(allocated_bytes, tensors_of(node)))
        return Measured(seconds, max(peak - sum(sizes), 0), sizes)
    if called is node.target or called in CHECKS:
        return Measured(0.0, 0, ())
    return Measured(_seconds_of_copying(node), 0, (), is_estimated=True)


def _fitting(step: JointStep, found: Measured, joint: Joint) -> Measured:
    """Return the measurement, adjusted to the results of the graph.

    If the measured storages do not match the results of the graph, the graph's bytes are used.
    A random op needs workspace for a copy of the generator state, which a recomputation restores.
    """
    if len(found.result_bytes) != len(step.makes):
        found = replace(found, result_bytes=tuple(joint.bytes[value] for value in step.makes))
    if not is_random(step.node):
        return found
    copied = random_state(device_of(step.node)).nbytes
    return replace(found, workspace=found.workspace + copied)


class Store:
    """Measurements by key, with the cache file that stores them."""

    def __init__(self, path: Path | None, known: dict[str, Measured]) -> None:
        self.path, self.known = path, known

    @classmethod
    def of_device(cls, device: torch.device) -> Store:
        """Return the store of a device in the user's cache (XDG base directories)."""
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        named = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
        if device.type == "cuda":
            named += " requested bytes"  # earlier versions of graphc measured allocated bytes
        settings = f"{torch.__version__} {named} {torch.get_num_threads()} {_settings()}"
        known_by = hashlib.sha256(settings.encode()).hexdigest()[:16]
        path = Path(home) / "graphc" / "torch" / f"{known_by}.json"
        return cls(path, _read(path))

    def add(self, found: Mapping[str, Measured]) -> None:
        """Add new measurements, and write the file if possible.

        Measurements that another process stored meanwhile take precedence, because its plans use
        them. Estimates are not stored, since their cause may be gone the next time.
        """
        self.known.update(found)
        if self.path is None:
            return
        # If the file cannot be written, the next plan only has to measure again.
        with contextlib.suppress(OSError, TorchError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with locked(self.path.with_suffix(".lock")):
                self.known.update(_read(self.path))
                kept = {
                    key: (each.seconds, each.workspace, each.result_bytes)
                    for key, each in sorted(self.known.items())
                    if not each.is_estimated
                }
                write_atomically(self.path, json.dumps(kept).encode(), TorchError)


def _read(path: Path) -> dict[str, Measured]:
    """Return the measurements in a file; none if it is missing or damaged."""
    try:
        found = json.loads(path.read_text())
        return {
            str(key): Measured(float(seconds), int(workspace), tuple(int(size) for size in sizes))
            for key, (seconds, workspace, sizes) in found.items()
        }
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "cpu"
    return next((line for line in lines if line.startswith("model name")), "cpu")


def _settings() -> tuple[object, ...]:
    """Return the user's settings that influence the algorithm or workspace of an op."""
    libraries = torch.backends.mkldnn, torch.backends.cudnn
    kinds = (each for library in libraries for each in (library, library.conv, library.rnn))
    products = torch.backends.mkldnn.matmul, torch.backends.cuda.matmul
    return (
        *((each.enabled, each.deterministic) for each in libraries),
        torch.backends.cudnn.benchmark,
        torch.are_deterministic_algorithms_enabled(),
        # torch.get_float32_matmul_precision() fails if these have been set individually.
        *(each.fp32_precision for each in (*kinds, *products)),
    )


def _device(joint: Joint) -> torch.device:
    devices = {device_of(step.node) for step in joint.steps}
    gpus = sorted((each for each in devices if each.type == "cuda"), key=str)
    return gpus[0] if gpus else torch.device("cpu")


def key_of(node: fx.Node) -> str:
    """Return a key of a node: its op and the types, shapes and strides of its operands."""
    given = tree_map(_described, (node.args, dict(node.kwargs)))
    return f"{node.target} {given}"


def _described(argument: Any) -> Any:
    if not isinstance(argument, fx.Node):
        return str(argument)
    value = argument.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return str(value)
    shape, stride = tuple(value.shape), tuple(value.stride())
    return f"{value.dtype}{shape}{stride}{value.device}"


FILLS = (0, 1)
"""Fill values tried for integer operands: 0 suits any index, 1 suits pivots and divisors."""


@dataclass(frozen=True)
class _Timed:
    """Seconds of a node, bytes of its results, and the integer fill; None if it does not run."""

    seconds: float
    result_bytes: tuple[int, ...]
    fill: int | None


def _run(keys: list[str], nodes: list[fx.Node]) -> dict[str, Measured]:
    """Measure times first, then bytes, because the profiler would slow the timed runs."""
    with torch.no_grad(), torch.random.fork_rng(), disable_current_modes():
        timed = [_timed(node) for node in nodes]
        most = until_complete(partial(_peaks, nodes, [each.fill for each in timed]))
    return {
        key: Measured(
            each.seconds,
            in_blocks(max(peak - sum(each.result_bytes), 0), device_of(node)),
            each.result_bytes,
            is_estimated=each.fill is None,
        )
        for key, node, each, peak in zip(keys, nodes, timed, most, strict=True)
    }


def _timed(node: fx.Node) -> _Timed:
    """Time a node whose integers are all the first of `FILLS` with which it raises no error."""
    for fill in FILLS:
        try:
            call = _call(node, fill)
            return _Timed(seconds_of(call, device_of(node)), _result_bytes(call()), fill)
        except Exception as error:  # an op may refuse any operands
            if _is_of_memory(error):
                raise
    return _Timed(_seconds_of_copying(node), (), None)


def _is_of_memory(error: Exception) -> bool:
    """Return whether an op failed for lack of memory, which other operands would not fix."""
    is_named = any(text in str(error) for text in NO_MEMORY)
    return is_named or isinstance(error, torch.OutOfMemoryError | MemoryError)


def _seconds_of_copying(node: fx.Node) -> float:
    """Return the seconds of moving as many bytes as operands and results have."""
    tensors = [tensor for each in (node, *node.all_input_nodes) for tensor in tensors_of(each)]
    moved = sum(each.numel() * each.element_size() for each in tensors)
    return _seconds_of_moving(moved, device_of(node))


@cache
def _seconds_of_moving(count: int, device: torch.device) -> float:
    """Measure once per process, so that its plans agree."""
    with disable_current_modes():
        half = torch.empty(count // 2 + 1, dtype=torch.uint8, device=device)
        return seconds_of(half.clone, device)


def _peaks(nodes: list[fx.Node], fills: list[int | None]) -> list[int]:
    """Return the peak bytes that each node allocates; its operands exist only while it runs.

    On a GPU, these are the requested bytes. Remainders of blocks would not be those of a step.
    """
    calls = list(zip(nodes, fills, strict=True))
    on_gpu = {node for node in nodes if device_of(node).type == "cuda"}
    on_cpu = (_call(node, fill) for node, fill in calls if node not in on_gpu)
    found = iter(peaks(on_cpu) if len(on_gpu) < len(nodes) else ())
    return [
        peak_on_gpu(_call(node, fill), device_of(node)).requested if node in on_gpu else next(found)
        for node, fill in calls
    ]


def _call(node: fx.Node, fill: int | None) -> Callable[[], Any]:
    """Return a call of the node's op on new operands, which the call alone keeps alive.

    If `fill` is None, the call does nothing.
    """
    if fill is None:
        return lambda: None
    run = callable_of(node.target)
    made: dict[fx.Node, Any] = {}

    def operand(argument: Any) -> Any:
        if not isinstance(argument, fx.Node):
            return argument
        if argument not in made:
            made[argument] = _numbers(argument, fill)
        return made[argument]

    def call() -> Any:
        return run(*args, **kwargs)

    args, kwargs = tree_map(operand, (node.args, dict(node.kwargs)))
    return call


def _numbers(node: fx.Node, fill: int) -> Any:
    """Return a tensor with the type, shape and strides of the graph.

    Floats are between 0.25 and 0.75, so that they are valid probabilities; integers are `fill`.
    Auxiliary byte outputs of an op (such as a reserve for its backward pass) are opaque, and the
    graph may not know their size. Seeds of attention with dropout may be on the host, where the
    graph has them on a GPU, and a kernel crashes on others. Both are obtained by running the op.
    """
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return value
    if node.target is operator.getitem and (value.dtype == torch.uint8 or _is_seed(node)):
        whole, index = node.args
        return _call(whole, fill)()[index]
    extents = zip(value.shape, value.stride(), strict=True)
    count = 1 + sum((size - 1) * step for size, step in extents) if value.numel() else 0
    flat = torch.full((count,), fill, dtype=value.dtype, device=value.device)
    if value.dtype.is_floating_point:
        flat.uniform_(0.25, 0.75)
    return flat.as_strided(tuple(value.shape), tuple(value.stride()))


def _is_seed(node: fx.Node) -> bool:
    """Return True for the seed, or the offset, of the random numbers of an attention op."""
    whole, value = node.args[0], node.meta["val"]
    is_integer = not (value.dtype.is_floating_point or value.dtype.is_complex)
    return is_integer and "attention" in str(getattr(whole, "target", ""))


def _result_bytes(result: Any) -> tuple[int, ...]:
    storages = {
        leaf.untyped_storage()._cdata: allocated_bytes(leaf)
        for leaf in tree_leaves(result)
        if isinstance(leaf, torch.Tensor)
    }
    return tuple(storages.values())
