"""Groups of elementwise nodes become one node each: fewer kernels, and no bytes for what a group
computes on the way.

A group is a set of elementwise nodes with one key: one phase, mirror count, user's segment, shape,
layout and float type to compute in. They run as one kernel at the step of the last member, in
registers; only what is read outside of the group is written.

One walk over the nodes in their order. A node begins a group of its own, and takes in the groups
that make its operands, the latest first, where these are open and of its key, and where all
together are small enough and cost no bytes.

Invariant: a group is open as long as no node outside of it reads one of its values and no state
that it reads was replaced. The members of an open group can all be moved to a later step, and so
they are when it is joined: what they read is there and unchanged, and nobody waits for what they
make. A group is closed by its first reader that does not take it in, whatever the reason, so all
readers outside stand behind the last member, and no cycle can arise.

Bytes (`_Grouping.saves`). Apart, members hold what they make until it is read; together, they hold
what they read until the last member runs. So two things are asked. Wherever another kernel runs
between two members, the inputs that would be dead by then are no larger than the members' values
that would be waiting. And at the step of the group, its inputs, and those outputs that cannot be
written over a dying input, are no larger than what was live of inputs and members' values while
some member ran alone. Values of other nodes are not looked at, so a group whose members are far
apart may still raise the peak of the graph: where it does, only members side by side are fused.

The bits stay the same, see `graphc.ops.fused`. Cost: O(V + E), with the limits on the size of a
group as a factor.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from graphc.allocation.allocate import Allocation
from graphc.allocation.liveness import peak_bytes
from graphc.ir.graph import Graph, Input, Node, State, Value
from graphc.ir.rewrite import Rewriter, instead
from graphc.ir.types import compute_dtype, padded_strides
from graphc.ops.fused import Fused, FusedAttributes, Member, is_fusible, share_arithmetic
from graphc.passes.precision import casts_a_parameter

MOST_MEMBERS = 16
MOST_INPUTS = 10
MOST_OUTPUTS = 6
"""Beyond these, threads run out of registers."""


def fuse(given: Allocation, recomputes: bool = False) -> Allocation:
    """The graph with groups of elementwise nodes as one node each, the others in their order.

    Members of a group have one shape, one layout and one float type to compute in, and
    belong to one phase, mirror count and user's segment. Values that are kept, copies and what has
    copies stay apart. What is also read outside of its group becomes a further output; but no
    forward group has one where the graph is fused for a plan that `recomputes`: values that are
    made together cannot be kept or dropped apart, and where one value would cut the network in two,
    two would have to.
    """
    graph = given.graph
    groups = [group for group in _Grouping(given, recomputes).run() if len(group.steps) > 1]
    if not groups:
        return given
    fused = given.of(_rebuilt(graph, groups))
    # A plan that recomputes has another peak, which its planner keeps to what was asked for.
    most = _peak_bytes(given)
    if recomputes or _peak_bytes(fused) <= most:
        return fused
    in_a_row = [group for group in groups if group.steps[-1] - group.steps[0] < len(group.steps)]
    fused = given.of(_rebuilt(graph, in_a_row))
    return fused if _peak_bytes(fused) <= most else given


def _peak_bytes(given: Allocation) -> int:
    """The most bytes live at one node, but for a CPU's registers of groups: they are asked for."""
    return peak_bytes(
        (tenant.first, tenant.last, tenant.bytes)
        for tenant in given.tenants("packed")
        if not (isinstance(tenant.owner, Node) and isinstance(tenant.owner.op, Fused))
    )


@dataclass(eq=False, slots=True)
class _Group:
    """A group so far: the steps of its members, ascending, and the key that they share."""

    steps: list[int]
    key: Hashable
    is_open: bool = True


@dataclass(frozen=True, slots=True)
class _Extent:
    """The bytes of a value that a group reads, or that a member makes, and how long they last."""

    bytes: int
    shape: tuple[int, ...]
    born: int
    last: int
    """The last step that reads these bytes."""
    is_reusable: bool
    """Whether a result may be written over these bytes once nothing else reads them."""


class Lasting:
    """How long the bytes of a graph's values last."""

    def __init__(self, graph: Graph) -> None:
        self.last: dict[Value, int] = {}
        """Root → the last step that reads it or a view of it; one past all for visible values."""
        for value, root in graph.roots.items():
            end = len(graph.nodes) if value in graph.visible or isinstance(root, State) else -1
            read = graph.uses[value]
            self.last[root] = max(self.last.get(root, -1), end, read[-1] if read else -1)
        self.others = [0]
        """Step → how many nodes before it run a kernel, so a difference says what is between."""
        for node in graph.nodes:
            self.others.append(self.others[-1] + (node.op.views is None))


class _Grouping:
    """The walk over the nodes of a graph that finds its groups."""

    def __init__(self, given: Allocation, recomputes: bool) -> None:
        graph = given.graph
        self.graph = graph
        self.recomputes = recomputes
        self.uses = graph.uses
        self.extents: dict[Value, _Extent] = {}
        self.originals = {node.copy_of for node in graph.nodes if node.copy_of is not None}
        self.group_of: dict[Node, _Group] = {}
        lasting = Lasting(graph)
        self.roots = graph.roots
        self.last, self.others = lasting.last, lasting.others
        self.strides = given.strides

    def run(self) -> list[_Group]:
        """Find all groups, those of one member too, in the order of their first members."""
        readers: dict[Value, list[Node]] = {}
        """State → the members of groups that read it, as long as it is not replaced."""
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
            # What this node does not take in, it reads from outside: those groups stop to grow.
            for group in makers:
                if joined is None or group.key != key or not self.join(joined, group):
                    group.is_open = False
            if joined is not None:
                for member in joined.steps:
                    self.group_of[self.graph.nodes[member]] = joined
            # Members that read a replaced state must not move behind this node.
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
        if lies == padded_strides(node.output.type):
            lies = None  # its elements come in the same order
        return (node.phase, node.mirror, node.segment, node.output.shape, lies, *wide)

    def join(self, joined: _Group, group: _Group) -> bool:
        """Take the members of `group` into `joined`, if that is small enough and costs no bytes."""
        steps = sorted({*joined.steps, *group.steps})
        if len(steps) > MOST_MEMBERS:
            return False
        members = [self.graph.nodes[step] for step in steps]
        made = dict.fromkeys(member.outputs[0] for member in members)
        first: dict[Value, int] = {}
        """Input of the group → the step of the first member that reads it."""
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
        """Whether the group needs no more bytes for its inputs and values than its members apart.

        `first` has of each input the first step that reads it; `outputs` are read outside.
        """
        needed: dict[Value, int] = {}
        for value, step in first.items():
            needed.setdefault(self.roots[value], step)
        read = [self.extent(root, step, root in first) for root, step in needed.items()]
        made = [self.extent(member.outputs[0], -1, True) for member in members]
        # Where another kernel runs between two members: inputs held on, for values not yet made.
        for before, behind in itertools.pairwise(steps):
            if self.others[behind] != self.others[before + 1]:
                held = sum(x.bytes for x in read if x.last < behind)
                carried = sum(x.bytes for x in made if x.born <= before and behind <= x.last)
                if held > carried:
                    return False
        # At the group's own step: inputs, and outputs that lie over none of them.
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
        """The bytes of a root, live from where it is made.

        Where it can be computed again, it counts only from the step `needed` that reads it first.
        """
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
    """Bytes of `extents` live while the member that makes `made` runs on its own.

    The member's result lies over what dies with it, where that has the same size and shape.
    """
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
    """The node that stands for a group's members, and the values of the old graph that it computes.

    It reads values of the new graph.
    """
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
