"""Gradients of recurrent weights: one product for all time steps instead of one for each step.

The gradient of a weight that is used at T time steps is the sum of T products a[t]ᵀ · b[t], where
b[t] are the rows that step t multiplies by the weight, and a[t] the gradients of the result. Each
product reads and writes the whole sum, for the few rows of a batch. If one tensor has all rows
a[t], and another one all rows b[t], a single product computes the sum.

A layer that runs over all steps before the next layer has such tensors. The gradients of all steps
give the gradient of the layer's input. The hidden states of all steps are the layer's output. Since
a step reads the state of the step before, b[t] is part t - 1 of the output, and the first step,
which reads the initial state, keeps a product of its own. The gradient of a bias is the sum of all
a[t].

The pass stores no tensor that the graph does not have, but those of all steps of a layer live until
the layer's last gradient. If layers alternate at every time step, no
tensor has the gradients of all steps, and storing them would take more memory than their layers do
otherwise, so such layers keep their products.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from graphc.ir import builder
from graphc.ir.graph import Graph, Node, Value
from graphc.ir.rewrite import Rewriter
from graphc.ops.concat import Concat
from graphc.ops.elementwise import Add, add
from graphc.ops.indexing import slice_
from graphc.ops.matmul import Matmul
from graphc.ops.reduce import Sum
from graphc.ops.shape import Full, Reshape, reshape
from graphc.passes.common_subexpressions import share_common_subexpressions


@dataclass(frozen=True, slots=True)
class _Part:
    """The matrix that is part number `index` of a concatenation of equal matrices."""

    whole: Node
    index: int


@dataclass(frozen=True, slots=True)
class _Run:
    """Summands of one gradient whose operands are consecutive parts of the same concatenations.

    `first` has the parts that the first summand reads, one for each of its operands.
    """

    summands: tuple[Node, ...]
    first: tuple[_Part, ...]


def merge_time_steps(graph: Graph) -> Graph:
    """Merge the summands of all time steps of a gradient into one node where operands allow it.

    The pass changes bits, so it runs for every plan, before recomputation is chosen.
    """
    parts = _parts(graph)
    known = {part.whole: _known_after(graph, part.whole) for part in parts.values()}
    due: dict[Node, list[_Run]] = {}
    for additions in _sums(graph):
        steps = sorted(graph.position[node] for node in additions)
        for run in _runs(_summands(graph, additions), parts):
            after = [known[part.whole] for part in run.first]
            after += [graph.position[node] for node in run.summands]
            first = bisect_right(steps, max(after))
            if first < len(steps):
                due.setdefault(graph.nodes[steps[first]], []).append(run)
    return share_common_subexpressions(_Merged(graph, due).run()) if due else graph


def _parts(graph: Graph) -> dict[Value, _Part]:
    """Return the matrices that are concatenated along the first axis, or stacked."""
    parts: dict[Value, _Part] = {}
    for node in graph.nodes:
        if not isinstance(node.op, Concat) or node.attributes.axis != 0:
            continue
        if len({part.shape for part in node.inputs}) != 1:
            continue
        for index, part in enumerate(node.inputs):
            is_view = part.node is not None and isinstance(part.node.op, Reshape)
            matrix = part.producer.inputs[0] if is_view else part
            if matrix.type.rank == 2 <= part.type.rank and matrix.shape[-1] == part.shape[-1]:
                known = parts.get(matrix)
                if known is None or len(known.whole.inputs) < len(node.inputs):
                    parts[matrix] = _Part(node, index)
    return parts


def _sums(graph: Graph) -> Iterable[list[Node]]:
    """Return the additions of each gradient that has several contributions, in order."""
    sums: dict[Value, list[Node]] = {}
    for node in graph.nodes:
        if isinstance(node.op, Add) and node.phase == "gradient":
            inner = [sums.pop(v, []) for v in node.inputs if _has_one_use(graph, v)]
            earlier, *others = sorted(inner, key=len, reverse=True) or [[]]
            for other in others:
                earlier.extend(other)
            earlier.append(node)
            sums[node.output] = earlier
    return sums.values()


def _has_one_use(graph: Graph, value: Value) -> bool:
    """Return True if one node reads a value, once."""
    uses = graph.uses[value]
    is_single = len(uses) == 1 and graph.nodes[uses[0]].inputs.count(value) == 1
    return is_single and value not in graph.visible


def _summands(graph: Graph, additions: Iterable[Node]) -> Iterator[Node]:
    """Yield the nodes whose results are summed, and have no other use."""
    inside = {node.output for node in additions}
    for node in additions:
        for value in node.inputs:
            if value.node is not None and value not in inside and _has_one_use(graph, value):
                yield value.node


def _runs(summands: Iterable[Node], parts: Mapping[Value, _Part]) -> list[_Run]:
    """Return the longest runs of at least two summands."""
    groups: dict[tuple[object, ...], dict[int, Node]] = {}
    for node in summands:
        if _is_over_rows(node) and all(value in parts for value in node.inputs):
            first, *others = (parts[value] for value in node.inputs)
            offsets = [(other.whole, other.index - first.index) for other in others]
            key = (node.op.name, node.attributes, first.whole, *offsets)
            groups.setdefault(key, {})[first.index] = node
    runs: list[list[Node]] = []
    for group in groups.values():
        for index in sorted(group):
            if index - 1 not in group:
                runs.append([])
            runs[-1].append(group[index])
    return [
        _Run(tuple(run), tuple(parts[value] for value in run[0].inputs))
        for run in runs
        if len(run) > 1
    ]


def _is_over_rows(node: Node) -> bool:
    """Return True if a node computes aᵀ · b of two matrices, or sums over the rows of one."""
    if isinstance(node.op, Sum):
        return node.attributes.axes == (0,) and node.output.type.rank == 1
    if type(node.op) is not Matmul or node.output.type.rank != 2:
        return False
    a = node.attributes
    return (a.transpose_a, a.transpose_b, a.accumulate) == (True, False, False)


def _known_after(graph: Graph, whole: Node) -> int:
    """Return the step after which a concatenation can run, except for views and constants."""
    last, pending = -1, [whole]
    while pending:
        node = pending.pop()
        if isinstance(node.op, Concat | Reshape | Full):
            pending += [value.node for value in node.inputs if value.node is not None]
        else:
            last = max(last, graph.position[node])
    return last


class _Merged:
    """The rewriting of one graph; `due` maps additions to the runs to add after them."""

    def __init__(self, graph: Graph, due: Mapping[Node, list[_Run]]) -> None:
        self.rewriter, self.due = Rewriter(graph), due
        self.merged = {node for runs in due.values() for run in runs for node in run.summands}
        self.gone = {node.output for node in self.merged}
        """Values that are not computed: merged summands, and sums of only those."""

    def run(self) -> Graph:
        for node in self.rewriter.graph.nodes:
            if node in self.due or not self.gone.isdisjoint(node.inputs):
                self.put_sum(node)
            elif node not in self.merged and node not in self.rewriter.stand_ins:
                self.put(node)
        return self.rewriter.result()

    def put(self, node: Node) -> None:
        """Add a node with its replaced operands, after those of them that are not there yet."""
        for value in node.inputs:
            first = value.node
            is_there = value in self.rewriter.standing or first in self.rewriter.stand_ins
            if first is not None and not is_there:
                self.put(first)
        self.rewriter.put(node, self.rewriter.moved(node))

    def put_sum(self, node: Node) -> None:
        """Add an addition without the operands that are gone, and with the runs that are due."""
        left = [value for value in node.inputs if value not in self.gone]
        if len(left) == len(node.inputs):
            self.put(node)
            left = [node.output]
        total = self.rewriter.value(left[0]) if left else None
        for run in self.due.get(node, []):
            with builder.in_phase(node.phase, node.scope, node.segment):
                merged = self.over_rows(run)
                total = self.added(merged if total is None else add(total, merged))
        if total is None:
            self.gone.add(node.output)
        else:
            self.rewriter.stand(node.outputs, (total,))

    def over_rows(self, run: _Run) -> Value:
        """Return the result of the op of a run for the rows of all its summands."""
        node, count = run.summands[0], len(run.summands)
        operands = [self.matrix(part, count) for part in run.first]
        context = builder.Context(node.scope, node.mirror, node.phase, node.segment)
        return builder.create(node.op, operands, node.attributes, context).output

    def matrix(self, first: _Part, count: int) -> Value:
        """Return consecutive parts of a concatenation as one matrix, which is a view of it."""
        if first.whole not in self.rewriter.stand_ins:
            self.put(first.whole)
        whole, parts = self.rewriter.value(first.whole.output), len(first.whole.inputs)
        rows = reshape(whole, (-1, whole.shape[-1]))
        each = rows.shape[0] // parts
        if count == parts:
            return rows
        return slice_(rows, slice(first.index * each, (first.index + count) * each))

    def added(self, value: Value) -> Value:
        """Add the node that computes a value, and those of its operands that are not there yet."""
        if value.node is not None and value.node not in self.rewriter.nodes:
            for operand in value.node.inputs:
                self.added(operand)
            self.rewriter.add(value.node)
        return value
