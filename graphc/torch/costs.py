"""Seconds and bytes of the nodes of a joint graph, measured once for each distinct node.

A node is run on numbers of its own, of the types, shapes and strides that the graph says. One that
refuses these is taken to take as long as copying what it reads and writes, and no workspace. What
counts is its target and what it is given: two layers of one shape are measured once. Results are
kept in a file for each device, version and settings of torch, so that the next plan has the same
costs; what does not run is tried again by the next process.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import operator
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from torch import fx
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from graphc.errors import TorchError
from graphc.files import locked, write_atomically
from graphc.torch.joint import Joint, Step, has_effects, is_random, tensors_of
from graphc.torch.measure import (
    allocated_bytes,
    measured_peak,
    peaks,
    seconds_of,
    until_complete,
)
from graphc.torch.refusals import CHECKS, called_op
from graphc.torch.runner import callable_of
from graphc.torch.steps import Measured, device_of, random_state

NO_MEMORY = ("can't allocate memory", "not enough memory")
"""What torch's allocator for the CPU says, in an error that has no type of its own."""


def measure(joint: Joint) -> dict[fx.Node, Measured]:
    """What each computing node takes, from the user's cache or by running it.

    The random state and the contents of parameters stay as they are.
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


def _not_run(node: fx.Node) -> Measured:
    """What a node is taken to cost that has effects: it runs once in any plan, and not before.

    Checks take nothing, nor do writes into what is there; of other ops that is not known.
    """
    called = called_op(node)
    if called is node.target or called in CHECKS:
        return Measured(0.0, 0, ())
    return Measured(_seconds_of_copying(node), 0, (), is_estimated=True)


def _fitting(step: Step, found: Measured, joint: Joint) -> Measured:
    """Where results are not one storage each, as the graph says they are, its bytes count.

    A repeat of a random op puts the generator back to where it was, from a copy of its state.
    """
    if len(found.result_bytes) != len(step.makes):
        found = replace(found, result_bytes=tuple(joint.bytes[value] for value in step.makes))
    if not is_random(step.node):
        return found
    copied = random_state(device_of(step.node)).nbytes
    return replace(found, workspace=found.workspace + copied)


class Store:
    """Measurements by key, and the file that keeps them."""

    def __init__(self, path: Path | None, known: dict[str, Measured]) -> None:
        self.path, self.known = path, known

    @classmethod
    def of_device(cls, device: torch.device) -> Store:
        """Those of a device, in the user's cache, as XDG's base directories say."""
        home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
        named = torch.cuda.get_device_name(device) if device.type == "cuda" else _processor()
        settings = f"{torch.__version__} {named} {torch.get_num_threads()} {_settings()}"
        known_by = hashlib.sha256(settings.encode()).hexdigest()[:16]
        path = Path(home) / "graphc" / "torch" / f"{known_by}.json"
        return cls(path, _read(path))

    def add(self, found: Mapping[str, Measured]) -> None:
        """Take new measurements in, and keep them where the file can be written.

        What another process has kept by now stays: its plans have those costs. What is estimated is
        not kept: it may be for want of something that is there the next time.
        """
        self.known.update(found)
        if self.path is None:
            return
        # A cache that cannot be kept costs a second at the next plan, and no more.
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
    """What a file holds; nothing where it is missing or damaged."""
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
    """What the user may set by which an op takes another algorithm, or other workspace."""
    libraries = torch.backends.mkldnn, torch.backends.cudnn
    kinds = (each for library in libraries for each in (library, library.conv, library.rnn))
    products = torch.backends.mkldnn.matmul, torch.backends.cuda.matmul
    return (
        *((each.enabled, each.deterministic) for each in libraries),
        torch.backends.cudnn.benchmark,
        torch.are_deterministic_algorithms_enabled(),
        # torch.get_float32_matmul_precision() fails where these have been set one by one.
        *(each.fp32_precision for each in (*kinds, *products)),
    )


def _device(joint: Joint) -> torch.device:
    devices = {device_of(step.node) for step in joint.steps}
    gpus = sorted((each for each in devices if each.type == "cuda"), key=str)
    return gpus[0] if gpus else torch.device("cpu")


def key_of(node: fx.Node) -> str:
    """What tells distinct nodes apart: the op, and the types, shapes and strides it is given."""
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
"""Integers of which operands are made: indices of anything; or pivots, divisors and the like."""


@dataclass(frozen=True)
class _Timed:
    """Seconds of a node, bytes of its results, and of what integers; None where it does not run."""

    seconds: float
    result_bytes: tuple[int, ...]
    fill: int | None


def _run(keys: list[str], nodes: list[fx.Node]) -> dict[str, Measured]:
    """Times first, then bytes: a profiler would be part of the times."""
    with torch.no_grad(), torch.random.fork_rng(), _disable_current_modes():
        timed = [_timed(node) for node in nodes]
        most = until_complete(partial(_peaks, nodes, [each.fill for each in timed]))
    return {
        key: Measured(
            each.seconds,
            max(peak - sum(each.result_bytes), 0),
            each.result_bytes,
            is_estimated=each.fill is None,
        )
        for key, each, peak in zip(keys, timed, most, strict=True)
    }


def _timed(node: fx.Node) -> _Timed:
    """What a node takes, of the first integers with which it runs."""
    for fill in FILLS:
        try:
            call = _call(node, fill)
            return _Timed(seconds_of(call, device_of(node)), _result_bytes(call()), fill)
        except Exception as error:  # an op may refuse whatever numbers it is given
            if _is_of_memory(error):
                raise
    return _Timed(_seconds_of_copying(node), (), None)


def _is_of_memory(error: Exception) -> bool:
    """Whether there is too little memory for the op, of which its numbers are no cause."""
    is_told = any(told in str(error) for told in NO_MEMORY)
    return is_told or isinstance(error, torch.OutOfMemoryError | MemoryError)


def _seconds_of_copying(node: fx.Node) -> float:
    """Seconds in which as many bytes are read and written as operands and results have."""
    tensors = [tensor for each in (node, *node.all_input_nodes) for tensor in tensors_of(each)]
    moved = sum(each.numel() * each.element_size() for each in tensors)
    return _seconds_of_moving(moved, device_of(node))


@cache
def _seconds_of_moving(count: int, device: torch.device) -> float:
    """Measured once in a process, so that its plans agree."""
    with _disable_current_modes():
        half = torch.empty(count // 2 + 1, dtype=torch.uint8, device=device)
        return seconds_of(half.clone, device)


def _peaks(nodes: list[fx.Node], fills: list[int | None]) -> list[int]:
    """The most bytes that each node allocates; its operands are there for its turn alone."""
    calls = list(zip(nodes, fills, strict=True))
    on_gpu = {node for node in nodes if device_of(node).type == "cuda"}
    on_cpu = (_call(node, fill) for node, fill in calls if node not in on_gpu)
    found = iter(peaks(on_cpu) if len(on_gpu) < len(nodes) else ())
    return [
        measured_peak(_call(node, fill), device=device_of(node)) if node in on_gpu else next(found)
        for node, fill in calls
    ]


def _call(node: fx.Node, fill: int | None) -> Callable[[], Any]:
    """A call of the node's op on operands made anew: they are there during the call alone.

    Without integers to make them of, nothing is called.
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
    """A tensor as the graph says: floats between 0 and 1, which may be probabilities, and integers.

    Bytes that an op makes beside its results mean something to its backward pass alone, and the
    graph may not know how many there are: the op is run for them.
    """
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor):
        return value
    if node.target is operator.getitem and value.dtype == torch.uint8:
        whole, index = node.args
        return _call(whole, fill)()[index]
    extents = zip(value.shape, value.stride(), strict=True)
    count = 1 + sum((size - 1) * step for size, step in extents) if value.numel() else 0
    flat = torch.full((count,), fill, dtype=value.dtype, device=value.device)
    if value.dtype.is_floating_point:
        flat.uniform_(0.25, 0.75)
    return flat.as_strided(tuple(value.shape), tuple(value.stride()))


def _result_bytes(result: Any) -> tuple[int, ...]:
    storages = {
        leaf.untyped_storage()._cdata: allocated_bytes(leaf)
        for leaf in tree_leaves(result)
        if isinstance(leaf, torch.Tensor)
    }
    return tuple(storages.values())
