"""Compilation of a plan's graphs by inductor, the compiler of ``torch.compile``.

Inductor decomposes the joint graph, a plan partitions it, and inductor generates kernels for both
parts. By its own order, recomputation would begin as soon as its operands exist, and the results
would wait for their use. So `_PlannedOrder` restores the order of the plan among fused kernels.
Fusion removes tensors of the plan, but also delays uses of others. So the peak of a step is that of
the ordered kernels (`_peak`), not that of its plan.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx
from torch.utils._ordered_set import OrderedSet

from graphc.torch.budget.trace.backend import Partitioning
from graphc.torch.budget.trace.sources import source_names
from graphc.torch.budget.trace.tracing import returned_of
from graphc.torch.private import functorch_config, inductor

INDUCTOR = inductor()
Partitioner: Any = INDUCTOR.CustomPartitionerFn
SchedulerPass: Any = INDUCTOR.CustomSchedulerPass

Peaks = tuple[int, int]
"""Upper bounds of the bytes that the forward and the backward graph allocate or free."""


def inductor_backend(
    partition: Partitioning,
    workspaces: Callable[[], Mapping[str, int]],
    begin: Callable[[Peaks | None], Callable[[Any], None]],
) -> Any:
    """Return a backend for torch.compile that partitions with a plan and compiles with inductor.

    After each partition, `workspaces` returns the workspace bytes of the nodes of its graphs by
    name, and `begin` is called with the peaks of both graphs, or None for a call without gradients.
    Its result is called before each step, with the inputs.
    """

    def compile_graph(traced: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        names, returned = source_names(traced), returned_of(traced)
        peaks, is_planned = {False: 0, True: 0}, False

        def split(joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **more: Any) -> Any:
            more.pop("compiler", None)
            nonlocal is_planned
            is_planned = True
            return partition(joint, num_fwd_outputs, names, returned, (inputs, more))

        # The cache of AOTAutograd knows no plans, and would return graphs of another budget. That
        # of graphs would return code without its peak. That of kernels remains.
        with functorch_config.patch(
            enable_autograd_cache=False, force_non_lazy_backward_lowering=True
        ):
            run = INDUCTOR.compile_fx(
                traced,
                given,
                config_patches={
                    "custom_partitioner_fn": _Partitioner(split),
                    "_post_fusion_custom_pass": _PlannedOrder(workspaces, peaks),
                    "allow_buffer_reuse": False,  # it keeps buffers until others have their size
                    "fx_graph_cache": False,
                },
            )
        note = begin((peaks[False], peaks[True]) if is_planned else None)

        def step(*args: Any) -> Any:
            note(args)
            return run(*args)

        return step

    return compile_graph


class _Partitioner(Partitioner):  # type: ignore[misc]
    """Inductor's partitioner, which returns the graphs of a plan."""

    def __init__(self, split: Callable[..., Any]) -> None:
        self.split = split

    def __call__(self, joint: fx.GraphModule, inputs: Any, **more: Any) -> Any:
        return self.split(joint, inputs, **more)

    def uuid(self) -> str:
        return __name__


class _PlannedOrder(SchedulerPass):  # type: ignore[misc]
    """A pass that orders fused kernels by the last of their nodes in the graph of the plan.

    It notes the peak of each graph, by whether it is the backward graph.
    """

    def __init__(self, workspaces: Callable[[], Mapping[str, int]], peaks: dict[bool, int]) -> None:
        self.workspaces, self.peaks = workspaces, peaks

    def __call__(self, kernels: list[Any]) -> list[Any]:
        position = {node: index for index, node in enumerate(INDUCTOR.V.graph.graph.nodes)}
        made_by = {name: kernel for kernel in kernels for name in _names(kernel)}
        users = defaultdict[Any, set[Any]](set)
        waiting = dict.fromkeys(kernels, 0)
        order = {
            kernel: (max((position.get(node, 0) for node in _origins(kernel)), default=0), index)
            for index, kernel in enumerate(kernels)
        }
        for kernel in kernels:
            for name in kernel.unmet_dependencies:
                maker = made_by.get(name.name)
                if maker not in (None, kernel) and kernel not in users[maker]:
                    users[maker].add(kernel)
                    waiting[kernel] += 1
        ready = [(order[kernel], kernel) for kernel in kernels if not waiting[kernel]]
        heapq.heapify(ready)
        found = []
        while ready:
            kernel = heapq.heappop(ready)[1]
            found.append(kernel)
            for user in users[kernel]:
                waiting[user] -= 1
                if not waiting[user]:
                    heapq.heappush(ready, (order[user], user))
        self.peaks[INDUCTOR.V.graph.is_backward] = _peak(found, self.workspaces())
        return found

    def uuid(self) -> str:
        return __name__


def _peak(kernels: list[Any], workspaces: Mapping[str, int]) -> int:
    """Return an upper bound of the live bytes, of saved tensors and of what kernels allocate.

    Parameters and tangents do not count, since their owners keep them. A result is live together
    with the operands of its kernel, although inductor may compute in place. Buffers that only their
    own fused kernel uses are never allocated.
    """
    graph = INDUCTOR.V.graph
    scheduler, returned = graph.scheduler, OrderedSet(graph.get_output_names())
    INDUCTOR.prepare_planning_info(
        kernels, scheduler.name_to_buf, scheduler.name_to_fused_node, OrderedSet(), returned
    )
    buffers, *_ = INDUCTOR.compute_memory_timeline(kernels, {}, returned)
    lives = [
        (each.start_step, each.end_step, max(each.size_alloc, each.size_free))
        for each in buffers
        if each.start_step != each.end_step or len(kernels[each.start_step].get_nodes()) == 1
    ]
    last = {dep.name: at for at, each in enumerate(kernels) for dep in each.read_writes.reads}
    for name, value in graph.graph_inputs.items():
        if graph.is_backward and not name.startswith(("primals", "tangents")):
            end = -1 if name in returned else last.get(name, -1)
            lives.append((0, end, _storage_bytes(value)))
    changes = [0] * (len(kernels) + 1)
    for first, end, size in lives:
        changes[first] += size
        if end != -1:
            changes[end + 1] -= size
    needs = [
        max((workspaces.get(node.name, 0) for node in _origins(each)), default=0)
        if each.is_extern()
        else 0
        for each in kernels
    ]
    return max(
        live + need for live, need in zip(itertools.accumulate(changes), [*needs, 0], strict=True)
    )


def _storage_bytes(value: Any) -> int:
    """Return the bytes of the storage of a graph's input; 0 if it is no tensor."""
    if not hasattr(value, "get_layout"):
        return 0
    count = int(value.get_layout().storage_size())
    return count * int(value.get_dtype().itemsize)


def _names(kernel: Any) -> list[str]:
    """Return the names of a kernel's buffers and operations."""
    return [*kernel.get_buffer_names(), *(part.get_name() for part in kernel.get_nodes())]


def _origins(kernel: Any) -> list[fx.Node]:
    """Return the nodes that a kernel computes, some of which may not be in the graph any more."""
    parts = (part.node for part in kernel.get_nodes())
    return [node for part in parts for node in getattr(part, "origins", ())]
