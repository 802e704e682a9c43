"""Peaks of the kernels that inductor makes of a graph, after fusion and in their final order.

The scheduler knows the buffers of its kernels and their first and last use. What its code allocates
differs: concatenations are allocated by their first part (`_concatenated`), results take the place
of operands (`_in_place`), and fused kernels that share a function for a CPU free operands after it
(`_frees`).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import fx
from torch.utils._ordered_set import OrderedSet
from torch.utils._pytree import tree_leaves

from graphc.torch.private import inductor

INDUCTOR = inductor()

Workspaces = Callable[[Sequence[tuple[str, fx.Node | None]]], Sequence[int]]
"""Returns workspace bytes of nodes, which have these names in the graph of a plan.

A node is given if inductor calls its op, with the strides that it chooses, or None.
"""


def peak_of(kernels: list[Any], workspaces: Workspaces, copied: set[str]) -> int:
    """Return an upper bound of the live bytes, of saved tensors and of what kernels allocate."""
    changes, needs = [0] * (len(kernels) + 2), [0] * (len(kernels) + 2)
    for life in _lives(kernels, copied):
        changes[life.first] += life.bytes
        changes[life.end + 1] -= life.bytes
    called = [
        (at, node)
        for at, each in enumerate(kernels)
        if each.is_extern()
        for node in origins_of(each)
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
    names = {each.buffer.get_name() for each in buffers}
    (begins, parts), frees = _concatenated(buffers), _frees(kernels)
    for each in buffers:
        if isinstance(each.buffer.node, INDUCTOR.MultiOutput):  # its kernel allocates all outputs
            maker = scheduler.name_to_buf[each.buffer.node.inputs[0].get_name()]
            begins[each.buffer.get_name()] = kernels.index(
                scheduler.name_to_fused_node[maker.defining_op.get_first_name()]
            )
    lives = {
        each.buffer.get_name(): _Life(
            begins.get(each.buffer.get_name(), each.start_step),
            frees[each.end_step],
            _bytes_of(each, names),
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


def _bytes_of(buffer: Any, names: set[str]) -> int:
    """Return the bytes of a buffer; of a tuple, those of tensors that have no buffers in `names`,
    and are freed with it."""
    node = buffer.buffer.node
    if not isinstance(node.layout, INDUCTOR.MultiOutputLayout):
        return int(max(buffer.size_alloc, buffer.size_free))
    outputs = tree_leaves(getattr(node, "outputs", ()))
    tensors = [each for each in outputs if isinstance(each, INDUCTOR.MultiOutput)]
    return sum(_storage_bytes(each) for each in tensors if each.get_name() not in names)


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
    """Return the bytes of the storage of an input or output of a kernel; 0 if it is no tensor."""
    if not hasattr(value, "get_layout"):
        return 0
    count = int(value.get_layout().storage_size())
    return count * int(value.get_dtype().itemsize)


def names_of(kernel: Any) -> list[str]:
    """Return the names of a kernel's buffers and operations."""
    return [*kernel.get_buffer_names(), *(part.get_name() for part in kernel.get_nodes())]


def origins_of(kernel: Any) -> list[fx.Node]:
    """Return the nodes that a kernel computes, some of which may not be in the graph any more."""
    parts = (part.node for part in kernel.get_nodes())
    return [node for part in parts for node in getattr(part, "origins", ())]
