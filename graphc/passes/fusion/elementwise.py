"""Fusion of elementwise nodes: fewer kernels, and no bytes for intermediate values.

A group is a set of elementwise nodes with the same key: phase, mirror count, user's segment, shape,
layout and float type to compute in. The group runs as one kernel at the step of its last member.
Intermediate values stay in registers; only values with uses outside of the group are written.

The pass is one walk over the nodes in their order. Each node begins a new group, and merges with it
the groups that produce its operands, the latest first. Such a group must be open and have the same
key. The merged group must stay below limits of size, and must not need more bytes.

Invariant: a group is open as long as no node outside of it reads one of its values, and no state
that it reads was replaced. So all members of an open group can move to the later step at which it
is merged: their operands are available and unchanged, and no node needs their results yet. A
consumer that is not merged with a group closes the group, so it has no later members. Therefore all
uses outside of the group come after its last member, and no cycle can arise.

Bytes (`_Grouping.saves`): without fusion, results of members are live until their last use. With
fusion, inputs of members are live until the last member runs. So there are two conditions. First,
at each kernel that runs between two members, fusion extends the live ranges of some inputs. Their
bytes must not exceed those of the members' values that are live there without fusion. Second,
consider the step at which the group runs. Its inputs, and its outputs that cannot overwrite a dying
input, are live there. Their bytes must not exceed those of the inputs and members' values that are
live without fusion at the step of some member. Values of other nodes are ignored, so a group whose
members are far apart may still raise the peak of the graph. If it does, only adjacent members are
fused.

The bits stay the same, see `graphc.ops.fused`. Cost: O(V + E), times the limits on the size of a
group.
"""

from __future__ import annotations

import itertools
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace

from graphc.ir.graph import Graph, Input, Node, State, Value
from graphc.ir.rewrite import Rewriter, instead
from graphc.ir.types import compute_dtype, padded_strides
from graphc.memory.allocate import Allocation
from graphc.memory.liveness import peak_bytes
from graphc.ops.float8 import casts_a_parameter
from graphc.ops.fused import Fused, FusedAttributes, Member, is_fusible, share_arithmetic

MOST_MEMBERS = 16
MOST_INPUTS = 10
MOST_OUTPUTS = 6
"""Limits on the size of a group; beyond them, threads run out of registers."""


def fuse(given: Allocation, recomputes: bool = False) -> Allocation:
    """Return the graph with each group of elementwise nodes fused into one node.

    Other nodes keep their order. Members of a group have the same shape, layout, float type to
    compute in, phase, mirror count and user's segment. Values marked as kept, recomputed copies and
    their originals are not fused. A value that is also used outside of its group becomes a further
    output.

    If the graph is fused for a plan that `recomputes`, forward groups have only one output.
    Otherwise the outputs of a group could only be saved or evicted together, so a cut of the graph
    through one value would become a cut through two.
    """
    graph = given.graph
    groups = [group for group in _Grouping(given, recomputes).run() if len(group.steps) > 1]
    if not groups:
        return given
    fused = given.of(_rebuilt(graph, groups))
    # A plan that recomputes has another peak, which its planner keeps within the budget.
    most = _peak_bytes(given)
    if recomputes or _peak_bytes(fused) <= most:
        return fused
    in_a_row = [group for group in groups if group.steps[-1] - group.steps[0] < len(group.steps)]
    fused = given.of(_rebuilt(graph, in_a_row))
    return fused if _peak_bytes(fused) <= most else given


def _peak_bytes(given: Allocation) -> int:
    """Return the peak live bytes of a graph; on a CPU, without the workspace of fused groups."""
    return peak_bytes(
        (tenant.first, tenant.last, tenant.bytes)
        for tenant in given.tenants("packed")
        if not (isinstance(tenant.owner, Node) and isinstance(tenant.owner.op, Fused))
    )


@dataclass(eq=False, slots=True)
class _Group:
    """A group under construction: the steps of its members, ascending, and their common key."""

    steps: list[int]
    key: Hashable
    is_open: bool = True


@dataclass(frozen=True, slots=True)
class _Extent:
    """The size in bytes and the live range of an input of a group or a result of a member."""

    bytes: int
    shape: tuple[int, ...]
    born: int
    last: int
    """The last step that reads these bytes."""
    is_reusable: bool
    """True if a result may overwrite these bytes after their last use."""


class Lasting:
    """Live ranges of the values of a graph."""

    def __init__(self, graph: Graph) -> None:
        self.last: dict[Value, int] = {}
        """Root (a value that is not a view) → the last step that reads it or a view of it. For
        visible values and states, this is the number of steps."""
        for value, root in graph.roots.items():
            end = len(graph.nodes) if value in graph.visible or isinstance(root, State) else -1
            read = graph.uses[value]
            self.last[root] = max(self.last.get(root, -1), end, read[-1] if read else -1)
        self.others = [0]
        """Step → the number of earlier nodes that run a kernel. Differences give the number of
        kernels between two steps."""
        for node in graph.nodes:
            self.others.append(self.others[-1] + (node.op.views is None))


class _Grouping:
    """A walk over the nodes of a graph that groups elementwise nodes."""

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
        """Return all groups, including those of one member, in the order of their first members."""
        readers: dict[Value, list[Node]] = {}
        """Value that is replaced later → the members of groups that read it until then."""
        for step, node in enumerate(self.graph.nodes):
            sources = (self.group_of.get(v.node) for v in node.inputs if v.node is not None)
            makers = [group for group in dict.fromkeys(sources) if group and group.is_open]
            makers.sort(key=lambda group: -group.steps[-1])
            key = self.key(node)
            joined: _Group | None = None
            if key is not None:
                joined = _Group([step], key)
                for value in node.inputs:
                    if self.roots[value] in self.graph.replaced:
                        readers.setdefault(self.roots[value], []).append(node)
            # A group that this node does not merge has an outside use, so it is closed.
            for group in makers:
                if joined is None or group.key != key or not self.join(joined, group):
                    group.is_open = False
            if joined is not None:
                for member in joined.steps:
                    self.group_of[self.graph.nodes[member]] = joined
            # Members that read a replaced state must not move past this node.
            for state in node.replaced.values():
                for reader in readers.pop(state, ()):
                    self.group_of[reader].is_open = False
        return list(dict.fromkeys(self.group_of.values()))

    def key(self, node: Node) -> Hashable | None:
        """Return the key that a node shares with all members of its group, or None.

        It is None for nodes that cannot be fused.
        """
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
        strides = self.strides.get(node.output)
        if strides == padded_strides(node.output.type):
            strides = None  # padding does not change the order of elements
        return (node.phase, node.mirror, node.segment, node.output.shape, strides, *wide)

    def join(self, joined: _Group, group: _Group) -> bool:
        """Merge `group` into `joined` if the result is small enough and needs no more bytes.

        Returns False if they are not merged.
        """
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
        """Return True if fusion needs no more bytes than the members as separate nodes.

        `steps` has the steps of the members, ascending. `first` has the first step that reads each
        input; `outputs` are the values with uses outside of the group.
        """
        needed: dict[Value, int] = {}
        for value, step in first.items():
            needed.setdefault(self.roots[value], step)
        read = [self.extent(root, step, root in first) for root, step in needed.items()]
        made = [self.extent(member.outputs[0], -1, True) for member in members]
        # If another kernel runs between two members, inputs that live longer are compared with
        # members' values that would be live.
        for before, behind in itertools.pairwise(steps):
            if self.others[behind] != self.others[before + 1]:
                held = sum(x.bytes for x in read if x.last < behind)
                carried = sum(x.bytes for x in made if x.born <= before and behind <= x.last)
                if held > carried:
                    return False
        # At the group's own step: inputs, and outputs that overwrite none of them.
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
        """Return the bytes of a value with its views, and its live range.

        If the value can be recomputed, its live range begins only at `needed`, the step that reads
        it first. `is_read_whole` is True if the group reads the value itself, not only views of it.
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
    """Return the bytes of `extents` that are live at the step of the member that produces `made`.

    Without fusion, `made` may overwrite an extent of the same size and shape that dies at that
    step. Its bytes then count once.
    """
    step, live, is_over = made.born, 0, False
    for x in extents:
        if x.born <= step <= x.last or x is made:
            live += x.bytes
            if x.last == step and x.is_reusable and x.bytes == made.bytes:
                is_over |= x is not made and x.shape == made.shape
    return live - made.bytes if is_over else live


def _rebuilt(graph: Graph, groups: Sequence[_Group]) -> Graph:
    """Return the graph with a fused node in place of the last member of each group."""
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
    """Return the node that replaces a group, and the values of the old graph that it computes.

    Its operands are values of the new graph.
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
