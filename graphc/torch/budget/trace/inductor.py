"""Compilation of a plan's graphs by inductor, the compiler of ``torch.compile``.

Inductor decomposes the joint graph, a plan partitions it, and inductor generates kernels for both
parts. By its own order, recomputation would begin as soon as its operands exist, and the results
would wait for their use. So `_PlannedOrder` restores the order of the plan among fused kernels.
Fusion removes tensors of the plan, but also delays uses of others. So the peak of a step is that of
the ordered kernels (`kernels.peak_of`), not that of its plan.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch
from torch import fx

from graphc.torch.budget.trace import kernels
from graphc.torch.budget.trace.backend import Partitioning
from graphc.torch.budget.trace.joint import copied, storage_key, tensors_of
from graphc.torch.budget.trace.kernels import Workspaces, names_of, origins_of, peak_of
from graphc.torch.budget.trace.sources import source_names
from graphc.torch.budget.trace.tracing import returned_of
from graphc.torch.private import TracingContext, functorch_config, inductor

INDUCTOR = inductor()
Partitioner: Any = INDUCTOR.CustomPartitionerFn
SchedulerPass: Any = INDUCTOR.CustomSchedulerPass

Peaks = tuple[int, int]
"""Upper bounds of the bytes that the forward and the backward graph allocate or free."""

SETTINGS = {
    "allow_buffer_reuse": False,  # it keeps buffers until others have their size
    "reorder_for_peak_memory": False,  # after the order of the plan, and without workspaces
    "triton.cudagraphs": False,  # their pools exist beside the plan
}
"""Settings of inductor with which the peak of a step is that of its buffers."""

Known = Callable[[str, Callable[[], Peaks]], Peaks]
"""Returns the peaks with a key, from a cache or computed."""


def inductor_backend(
    partition: Partitioning,
    workspaces: Workspaces,
    begin: Callable[[Peaks | None], Callable[[Any], None]],
    mode: bool | str = True,
) -> Any:
    """Return a backend for torch.compile that partitions with a plan and compiles with inductor.

    After each partition, `workspaces` is called for its graphs, and `begin` with the peaks of both,
    or None for a call without gradients. A peak is 0 if inductor has found the graph in its cache.
    Its result is called before each step, with the inputs. `mode` is one of torch.compile, or True.
    """

    def compile_graph(traced: fx.GraphModule, given: Sequence[Any]) -> Callable[..., Any]:
        names, returned = source_names(traced), returned_of(traced)
        seen, is_planned = Seen(), False

        def split(joint: fx.GraphModule, inputs: Any, *, num_fwd_outputs: int, **more: Any) -> Any:
            more.pop("compiler", None)
            nonlocal is_planned
            is_planned = True
            graphs = partition(joint, num_fwd_outputs, names, returned, (inputs, more))
            for each in graphs:
                _add_apart(each.graph)
            return graphs

        # The cache of AOTAutograd knows no plans, and would return graphs of another budget.
        with functorch_config.patch(
            enable_autograd_cache=False, force_non_lazy_backward_lowering=True
        ):
            run = INDUCTOR.compile_fx(
                traced,
                given,
                config_patches={
                    **(INDUCTOR.list_mode_options(mode) if isinstance(mode, str) else {}),
                    "custom_partitioner_fn": _Partitioner(split),
                    "_post_fusion_custom_pass": _PlannedOrder(workspaces, seen),
                    **SETTINGS,
                },
            )
        note = begin((seen.peaks.get(False, 0), seen.peaks.get(True, 0)) if is_planned else None)

        def step(*args: Any) -> Any:
            note(args)
            return run(*args)

        return step

    return compile_graph


def compiled_peaks(
    forward: fx.GraphModule,
    backward: fx.GraphModule,
    outputs: int,
    workspaces: Workspaces,
    known: Known,
) -> Peaks:
    """Return the peaks that the graphs of a plan will have, without generating their code.

    It is called while the joint graph is partitioned. The first `outputs` values of the forward
    graph are not saved for the backward graph. `known` is called with a key of the peaks and what
    computes them.
    """

    def lowered() -> Peaks:
        seen = Seen()
        _lower(forward, range(outputs), workspaces, seen)
        # AOTAutograd notes these after the partition.
        noted = SimpleNamespace(
            bw_donated_idxs=_overwritten(forward, backward, outputs), static_input_indices=[]
        )
        with TracingContext.patch(fw_metadata=noted):
            _lower(backward, None, workspaces, seen)
        return seen.peaks[False], seen.peaks[True]

    key = _key_of(forward, backward)
    return (
        lowered()
        if key is None
        else known(f"peaks {key} {outputs} {functorch_config.donated_buffer}", lowered)
    )


def _overwritten(forward: fx.GraphModule, backward: fx.GraphModule, outputs: int) -> list[int]:
    """Return the indices of inputs that the backward graph may overwrite: of saved tensors that
    share no storage with inputs of the forward graph or with results."""
    if not functorch_config.donated_buffer:
        return []
    inputs = backward.graph.find_nodes(op="placeholder")
    kept = {
        storage_key(tensor)
        for node in (
            *forward.graph.find_nodes(op="placeholder"),
            *forward.graph.output_node().args[0][:outputs],
            *backward.graph.output_node().args[0],
        )
        if isinstance(node, fx.Node)
        for tensor in tensors_of(node)
    }
    return [
        index
        for index, node in enumerate(inputs)
        if not node.name.startswith(("primals", "tangents"))
        and all(storage_key(tensor) not in kept for tensor in tensors_of(node))
    ]


def _key_of(*modules: fx.GraphModule) -> str | None:
    """Return inductor's keys of the code of graphs, or None if it cannot make them."""
    keys = [_uuid(None).hex()]
    for module in modules:
        values = [node.meta["val"] for node in module.graph.find_nodes(op="placeholder")]
        try:
            keys.append(INDUCTOR.compiled_fx_graph_hash(module, values, {}, ())[0])
        except Exception:  # for values that its pickler does not take
            return None
    return " ".join(keys)


def _lower(
    module: fx.GraphModule, outputs: range | None, workspaces: Workspaces, seen: Seen
) -> None:
    """Note the kernels that inductor makes of a graph; `outputs` is None for a backward graph."""
    module = fx.GraphModule(module, copied(module.graph, {}))  # passes of inductor change it
    graph = module.graph
    _add_apart(graph)
    results = graph.output_node().args[0]
    is_backward = outputs is None
    visible = range(len(results)) if outputs is None else outputs
    graph.output_node().meta["user_visible_output_idxs"] = [
        index for index in visible if isinstance(results[index], fx.Node)
    ]
    sources = []
    for node in graph.find_nodes(op="placeholder"):
        value, strides = node.meta["val"], seen.strides.get(node.name)
        sources.append(value if strides is None else value.as_strided(value.shape, strides))
    stopping = _StoppingOrder(workspaces, seen)
    try:
        with INDUCTOR.config.patch(_post_fusion_custom_pass=stopping, fx_graph_cache=False):
            INDUCTOR.compile_fx_inner(module, sources, is_backward=is_backward)
    except Exception:
        if is_backward not in seen.peaks:
            raise
    seen.peaks.setdefault(is_backward, 0)  # of a graph without calls


def _add_apart(graph: fx.Graph) -> None:
    """Use another op for sums that do not follow the product which is one of their operands.

    Inductor fuses ``aten.add`` with a product, however early. The operands of the product would
    then be live until the sum.
    """
    products = torch.ops.aten.mm.default
    for node in graph.find_nodes(op="call_function", target=torch.ops.aten.add.Tensor):
        is_plain = len(node.all_input_nodes) == 2 and not node.kwargs
        early = [each for each in node.all_input_nodes if each.target is products]
        if is_plain and early and node.prev not in early and _are_alike(node.all_input_nodes):
            node.target = torch.ops.prims.add.default


def _are_alike(nodes: Sequence[fx.Node]) -> bool:
    """Return whether the results have the same type and shape, as the ops of prims require."""
    return len({(n.meta["val"].dtype, n.meta["val"].shape) for n in nodes}) == 1


@dataclass
class Seen:
    """Peaks, strides and copies of the kernels that inductor makes of the graphs of a plan."""

    peaks: dict[bool, int] = field(default_factory=dict)
    """The peak of each graph, by whether it is the backward graph."""
    strides: dict[str, tuple[int, ...]] = field(default_factory=dict)
    """The strides of the results of the forward graph, by name."""
    copied: set[str] = field(default_factory=set)
    """Sources of which the forward graph saves a copy in another layout."""

    def note(self, kernels: list[Any], workspaces: Workspaces) -> None:
        """Note the kernels of the graph that inductor compiles."""
        graph = INDUCTOR.V.graph
        results = () if graph.is_backward else graph.graph.output_node().args[0]
        for node, result in zip(results, graph.graph_outputs, strict=False):
            layout = result.maybe_get_layout() if isinstance(node, fx.Node) else None
            if layout is None:
                continue
            self.strides[node.name] = tuple(layout.stride)
            if node.op == "placeholder" and result.get_name() not in graph.graph_inputs:
                self.copied.add(node.name)
        self.peaks[graph.is_backward] = peak_of(kernels, workspaces, self.copied)


def _uuid(_: Any) -> Any:
    """Return what identifies passes in keys of inductor's caches, which have the graphs, too."""
    return INDUCTOR.get_hash_for_files((__file__, kernels.__file__))


class _Partitioner(Partitioner):  # type: ignore[misc]
    """Inductor's partitioner, which returns the graphs of a plan."""

    def __init__(self, split: Callable[..., Any]) -> None:
        self.split = split

    def __call__(self, joint: fx.GraphModule, inputs: Any, **more: Any) -> Any:
        return self.split(joint, inputs, **more)

    uuid = _uuid

    def __reduce__(self) -> Any:
        return bytes, (self.uuid(),)  # the key of a cache, where inductor pickles its settings


class _PlannedOrder(SchedulerPass):  # type: ignore[misc]
    """A pass that orders fused kernels by the last of their nodes in the graph of the plan."""

    def __init__(self, workspaces: Workspaces, seen: Seen) -> None:
        self.workspaces, self.seen = workspaces, seen

    def __call__(self, kernels: list[Any]) -> list[Any]:
        position = {node: index for index, node in enumerate(INDUCTOR.V.graph.graph.nodes)}
        made_by = {name: kernel for kernel in kernels for name in names_of(kernel)}
        users = defaultdict[Any, set[Any]](set)
        waiting = dict.fromkeys(kernels, 0)
        order = {
            kernel: (max((position.get(node, 0) for node in origins_of(kernel)), default=0), index)
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
        if not INDUCTOR.V.graph.is_inference:
            self.seen.note(found, self.workspaces)
        return found

    def __deepcopy__(self, _: Any) -> _PlannedOrder:
        return self  # inductor copies its settings

    uuid = _uuid

    def __reduce__(self) -> Any:
        return bytes, (self.uuid(),)  # the key of a cache, where inductor pickles its settings


class _StoppingOrder(_PlannedOrder):
    """A pass that ends the compilation."""

    def __call__(self, kernels: list[Any]) -> list[Any]:
        super().__call__(kernels)
        raise StopIteration
