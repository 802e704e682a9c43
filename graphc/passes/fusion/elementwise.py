"""Groups of elementwise nodes become one node each: fewer kernels, and no bytes for what a group
computes on the way.

One walk over the nodes in their order. A node joins the groups that make its operands where this
is sound and costs no bytes. A group runs where its last member stood, so it stops to grow once
anything else reads one of its values or replaces a state that it reads. The bits stay the same, see
`graphc.ops.fused`.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from graphc.allocation.layout import layouts
from graphc.ir.graph import Graph, Input, Node, State, Value
from graphc.ir.rewrite import Rewriter, instead
from graphc.ir.types import compute_dtype
from graphc.ops.fused import Fused, FusedAttributes, Member, is_fusible, share_arithmetic
from graphc.passes.precision import casts_a_parameter
from graphc.target import Target

MOST_MEMBERS = 16
MOST_INPUTS = 10
MOST_OUTPUTS = 6
"""Beyond these, threads run out of registers."""


def fuse(graph: Graph, target: Target, recomputes: bool = False) -> Graph:
    """The graph with groups of elementwise nodes as one node each, the others in their order.

    Members of a group have one shape, one layout and one float type to compute in, and
    belong to one phase, mirror count and user's segment. Values that are kept, copies and what has
    copies stay apart. What is also read outside of its group becomes a further output; but no
    forward group has one where the graph is fused for a plan that `recomputes`: values that are
    made together cannot be kept or dropped apart, and where one value would cut the network in two,
    two would have to.
    """
    groups = [group for group in _Grouping(graph, target, recomputes).run() if len(group.steps) > 1]
    return _rebuilt(graph, groups) if groups else graph


@dataclass(eq=False, slots=True)
class _Group:
    """Steps of members, ascending, and what all members have in common."""

    steps: list[int]
    key: Hashable
    is_open: bool = True


@dataclass(frozen=True, slots=True)
class _Extent:
    """Bytes that a group reads, or that a member makes."""

    bytes: int
    shape: tuple[int, ...]
    born: int
    last: int
    """The last step that reads them."""
    is_reusable: bool
    """Whether a result may be written over them once nothing else reads them."""


class Lasting:
    """How long the bytes of a graph's values last."""

    def __init__(self, graph: Graph) -> None:
        self.last: dict[Value, int] = {}
        """The last step that reads a root or a view of it."""
        for value, root in graph.roots.items():
            end = len(graph.nodes) if value in graph.visible or isinstance(root, State) else -1
            read = graph.uses[value]
            self.last[root] = max(self.last.get(root, -1), end, read[-1] if read else -1)
        self.others = [0]
        """How many nodes before each step run a kernel."""
        for node in graph.nodes:
            self.others.append(self.others[-1] + (node.op.views is None))


class _Grouping:
    def __init__(self, graph: Graph, target: Target, recomputes: bool) -> None:
        self.graph = graph
        self.recomputes = recomputes
        self.uses = graph.uses
        self.extents: dict[Value, _Extent] = {}
        self.originals = {node.copy_of for node in graph.nodes if node.copy_of is not None}
        self.group_of: dict[Node, _Group] = {}
        lasting = Lasting(graph)
        self.roots = graph.roots
        self.last, self.others = lasting.last, lasting.others
        self.strides = layouts(graph, target)

    def run(self) -> list[_Group]:
        """All groups, also those of one member, by their first members."""
        readers: dict[Value, list[Node]] = {}
        """The nodes that may join a group, for each state."""
        for step, node in enumerate(self.graph.nodes):
            sources = (self.group_of.get(v.node) for v in node.inputs if v.node is not None)
            makers = [group for group in dict.fromkeys(sources) if group and group.is_open]
            makers.sort(key=lambda group: -group.steps[-1])
            key = self.key(node)
            joined: _Group | None = None
            if key is not None:
                joined = _Group([step], key)
                for value in node.inputs:
                    if isinstance(self.roots[value], State):
                        readers.setdefault(self.roots[value], []).append(node)
            for group in makers:
                if joined is None or group.key != key or not self.join(joined, group):
                    group.is_open = False
            if joined is not None:
                for member in joined.steps:
                    self.group_of[self.graph.nodes[member]] = joined
            for state in node.replaced.values():
                for reader in readers.pop(state, ()):
                    self.group_of[reader].is_open = False
        return list(dict.fromkeys(self.group_of.values()))

    def key(self, node: Node) -> Hashable | None:
        """What members of one group have in common; None for a node that stays apart."""
        dtypes = [value.type.dtype for value in (*node.inputs, *node.outputs)]
        stays = (
            not is_fusible(node.op)
            or not share_arithmetic(dtypes)
            or node.phase == "mirror"
            or node.copy_of is not None
            or node in self.originals
            or node.output in self.graph.kept
            or casts_a_parameter(node)
        )
        if stays:
            return None
        wide = {compute_dtype(dtype) for dtype in dtypes if dtype.kind == "float"}
        lies = self.strides.get(node.output)
        return (node.phase, node.mirror, node.segment, node.output.shape, lies, *wide)

    def join(self, joined: _Group, group: _Group) -> bool:
        """Take the members of `group` into `joined`, if that is small enough and costs no bytes."""
        steps = sorted({*joined.steps, *group.steps})
        if len(steps) > MOST_MEMBERS:
            return False
        members = [self.graph.nodes[step] for step in steps]
        made = dict.fromkeys(member.outputs[0] for member in members)
        first: dict[Value, int] = {}
        """The first member that reads each input."""
        for step, member in zip(steps, members, strict=True):
            for value in member.inputs:
                if value not in made:
                    first.setdefault(value, step)
        if len(first) > MOST_INPUTS:
            return False
        inside = set(steps)
        outputs = [
            v for v in made if v in self.graph.visible or not inside.issuperset(self.uses[v])
        ]
        recomputed = self.recomputes and members[0].phase == "forward"
        if len(outputs) > (1 if recomputed else MOST_OUTPUTS):
            return False
        if not self.saves(steps, members, first, outputs):
            return False
        joined.steps = steps
        return True

    def saves(
        self,
        steps: Sequence[int],
        members: Sequence[Node],
        first: Mapping[Value, int],
        outputs: Sequence[Value],
    ) -> bool:
        """Whether no more bytes are live at any step than with the members apart."""
        needed: dict[Value, int] = {}
        for value, step in first.items():
            needed.setdefault(self.roots[value], step)
        read = [self.extent(root, step, root in first) for root, step in needed.items()]
        made = [self.extent(member.outputs[0], -1, True) for member in members]
        for before, behind in itertools.pairwise(steps):
            if self.others[behind] != self.others[before + 1]:
                held = sum(x.bytes for x in read if x.last < behind)
                carried = sum(x.bytes for x in made if x.born <= before and behind <= x.last)
                if held > carried:
                    return False
        together = sum(x.bytes for x in read)
        over = [x for x in read if x.is_reusable and x.last <= steps[-1]]
        for value in outputs:
            size = (value.type.bytes, value.shape)
            taken = next((x for x in over if (x.bytes, x.shape) == size), None)
            if taken is None:
                together += value.type.bytes
            else:
                over.remove(taken)
        extents = [*read, *made]
        return any(_live(x, extents) >= together for x in made)

    def extent(self, root: Value, needed: int, is_read_whole: bool) -> _Extent:
        """Bytes from where they are made, or, if they can be made again, `needed` first."""
        found = self.extents.get(root)
        if found is None:
            born = -1 if root.node is None else self.graph.position[root.node]
            is_reusable = not isinstance(root, State | Input)
            found = _Extent(root.type.bytes, root.shape, born, self.last[root], is_reusable)
            self.extents[root] = found
        if self.recomputes and root.node is not None and root.node.phase == "forward":
            found = replace(found, born=max(found.born, needed))
        return found if is_read_whole else replace(found, is_reusable=False)


def _live(made: _Extent, extents: Sequence[_Extent]) -> int:
    """Bytes live while a member runs on its own; it overwrites what dies with it."""
    step, live, is_over = made.born, 0, False
    for x in extents:
        if x.born <= step <= x.last or x is made:
            live += x.bytes
            if x.last == step and x.is_reusable and x.bytes == made.bytes:
                is_over |= x is not made and x.shape == made.shape
    return live - made.bytes if is_over else live


def _rebuilt(graph: Graph, groups: Sequence[_Group]) -> Graph:
    """The graph with a fused node where the last member of each group was."""
    grouped = {step for group in groups for step in group.steps}
    ends = {group.steps[-1]: group for group in groups}
    rewriter = Rewriter(graph)
    for step, node in enumerate(graph.nodes):
        if step in ends:
            members = [graph.nodes[member] for member in ends[step].steps]
            fused, results = _fused(graph, members, rewriter)
            rewriter.stand(results, rewriter.add(fused).outputs)
        elif step not in grouped:
            rewriter.put(node, rewriter.moved(node))
    return rewriter.result()


def _fused(graph: Graph, members: Sequence[Node], rewriter: Rewriter) -> tuple[Node, list[Value]]:
    """The node of a group, on values of the new graph, and the old values that it computes."""
    returned = set(graph.outputs.values())
    names: dict[Value, str] = {}
    inputs: list[Value] = []
    calls: list[str] = []
    results: list[int] = []
    steps = {graph.position[member] for member in members}
    inside = {member.output for member in members}
    for number, member in enumerate(members):
        for value in member.inputs:
            if value not in names:
                names[value] = f"x{len(inputs)}"
                inputs.append(value)
        operands = tuple(names[value] for value in member.inputs)
        calls.append(str(Member(member.op, operands, member.attributes)))
        names[member.output] = f"m{number}"
        if member.output in returned or not steps.issuperset(graph.uses[member.output]):
            results.append(number)
    assert inside.isdisjoint(inputs), "members stand behind what they read"
    made = [members[number].output for number in results]
    attributes = FusedAttributes(tuple(calls), tuple(results))
    types = [value.type for value in made]
    node = instead(members[-1], Fused.name, rewriter.values(inputs), attributes, types)
    return node, made
