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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx
from torch.utils._ordered_set import OrderedSet

from graphc.torch.budget.trace.backend import Partitioning
from graphc.torch.budget.trace.joint import copied
from graphc.torch.budget.trace.sources import source_names
from graphc.torch.budget.trace.tracing import returned_of
from graphc.torch.private import functorch_config, inductor

INDUCTOR = inductor()
Partitioner: Any = INDUCTOR.CustomPartitionerFn
SchedulerPass: Any = INDUCTOR.CustomSchedulerPass

Workspaces = Callable[[Sequence[tuple[str, fx.Node | None]]], Sequence[int]]
"""Returns workspace bytes of nodes, which have these names in the graph of a plan.

A node is given if inductor calls its op, with the strides that it chooses, or None.
"""

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
        _lower(backward, None, workspaces, seen)
        return seen.peaks[False], seen.peaks[True]

    key = _key_of(forward, backward)
    return lowered() if key is None else known(f"peaks {key} {outputs}", lowered)


def _key_of(*modules: fx.GraphModule) -> str | None:
    """Return inductor's keys of the code of graphs, or None if it does not cache this code."""
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
        with INDUCTOR.config.patch(_post_fusion_custom_pass=stopping):
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
        self.peaks[graph.is_backward] = _peak(kernels, workspaces, self.copied)


def _uuid(_: Any) -> Any:
    """Return what identifies passes in keys of inductor's caches, which have the graphs, too."""
    return INDUCTOR.get_hash_for_files((__file__,))


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


def _peak(kernels: list[Any], workspaces: Workspaces, copied: set[str]) -> int:
    """Return an upper bound of the live bytes, of saved tensors and of what kernels allocate."""
    changes, needs = [0] * (len(kernels) + 2), [0] * (len(kernels) + 2)
    for life in _lives(kernels, copied):
        changes[life.first] += life.bytes
        changes[life.end + 1] -= life.bytes
    called = [
        (at, node) for at, each in enumerate(kernels) if each.is_extern() for node in _origins(each)
    ]
    sizes = workspaces([(node.name, _called(kernels[at], node)) for at, node in called])
    for (at, _), size in zip(called, sizes, strict=True):
        needs[at] = max(needs[at], size)
    lives = itertools.accumulate(changes)
    return max(live + need for live, need in zip(lives, needs, strict=True))


@dataclass
class _Life:
    """A storage that is live from the first to the last of these kernels."""

    first: int
    end: int
    bytes: int


def _lives(kernels: list[Any], copied: set[str]) -> list[_Life]:
    """Return the storages that a graph allocates or frees.

    Parameters and tangents do not count, since their owners keep them, except for `copied` ones.
    Buffers that only their own fused kernel uses are never allocated.
    """
    graph = INDUCTOR.V.graph
    scheduler, returned = graph.scheduler, OrderedSet(graph.get_output_names())
    INDUCTOR.prepare_planning_info(
        kernels, scheduler.name_to_buf, scheduler.name_to_fused_node, OrderedSet(), returned
    )
    buffers, *_ = INDUCTOR.compute_memory_timeline(kernels, {}, returned)
    (begins, parts), frees = _concatenated(buffers), _frees(kernels)
    lives = {
        each.buffer.get_name(): _Life(
            begins.get(each.buffer.get_name(), each.start_step),
            frees[each.end_step],
            max(each.size_alloc, each.size_free),
        )
        for each in buffers
        if each.buffer.get_name() not in parts
        and (each.start_step != each.end_step or len(kernels[each.start_step].get_nodes()) == 1)
    }
    last = {dep.name: at for at, each in enumerate(kernels) for dep in each.read_writes.reads}
    for name, value in graph.graph_inputs.items():
        is_kept = name.startswith(("primals", "tangents")) and name not in copied
        if graph.is_backward and not is_kept:
            end = -1 if name in returned else last.get(name, -1)
            lives[name] = _Life(0, frees[end], _storage_bytes(value))
    for name, operand in _in_place(kernels).items():
        if operand in lives:
            lives[operand].end = lives[name].end if name in lives else lives[operand].end
            lives[name] = lives[operand]
    return list({id(each): each for each in lives.values()}.values())


def _frees(kernels: Sequence[Any]) -> list[int]:
    """Return, for each kernel, the one after which its operands are freed; for -1, the last index.

    For a CPU, inductor generates one function of fused kernels that follow each other.
    """
    frees = list(range(len(kernels) + 1))
    joins = [
        not (each.is_extern() or each.is_template())
        and (each.get_device() is None or each.get_device().type == "cpu")
        for each in kernels
    ]
    for at in reversed(range(len(kernels) - 1)):
        if joins[at] and joins[at + 1]:
            frees[at] = frees[at + 1]
    return frees


def _in_place(kernels: Sequence[Any]) -> dict[str, str]:
    """Return the results that kernels write over an operand, as inductor decides when it generates
    their code, with these operands."""
    scheduler, found = INDUCTOR.V.graph.scheduler, dict[str, str]()
    completed, scheduler.completed_operations = scheduler.completed_operations, OrderedSet()
    for each in kernels:
        kernel = INDUCTOR.Kernel(increase_kernel_count=False)
        with INDUCTOR.V.set_kernel_handler(kernel):
            for node in () if each.is_template() else each.get_nodes():
                node.decide_inplace_update()
        found |= kernel.inplace_update_buffers
        scheduler.completed_operations.update(each.get_operation_names())
    scheduler.completed_operations = completed
    return found


def _concatenated(buffers: Sequence[Any]) -> tuple[dict[str, int], set[str]]:
    """Return the first steps of concatenations, and the buffers that are parts of them.

    The first part allocates the whole concatenation.
    """
    begins: dict[str, int] = {}
    parts: set[str] = set()
    for each in sorted(buffers, key=lambda each: -each.start_step):
        layout = each.buffer.node.maybe_get_layout()
        if isinstance(layout, INDUCTOR.NonOwningLayout):
            begin = begins.pop(each.buffer.get_name(), each.start_step)
            begins[layout.view.get_name()] = min(begin, each.start_step)
            parts.add(each.buffer.get_name())
    return begins, parts


def _called(kernel: Any, node: fx.Node) -> fx.Node | None:
    """Return a node with the operands of a kernel that calls an op, or None for other kernels.

    Inductor prefers other layouts for convolutions, for which the op needs another workspace.
    """
    called, operands = kernel.node, kernel.node.inputs
    values = [each.meta.get("val") for each in node.all_input_nodes]
    is_called = node is called.origin_node or node.target is getattr(called, "op_overload", None)
    if not is_called or len(values) != len(operands):
        return None
    graph = fx.Graph()
    given = {}
    for source, value, operand in zip(node.all_input_nodes, values, operands, strict=True):
        given[source] = graph.placeholder(source.name)
        given[source].meta["val"] = value.as_strided(value.shape, tuple(operand.get_stride()))
    return graph.node_copy(node, given.__getitem__)


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
