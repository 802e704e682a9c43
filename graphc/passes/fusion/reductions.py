"""Reductions take what computes their operand, and what follows: on a GPU, one kernel in place of
two or three, and the operand needs no bytes.

The pass runs behind that of `elementwise.py`. A group is a sum, mean, maximum or sum of squares,
and at least one of

    before  the elementwise node that makes its operand, or of a fused node the member that makes it
            and the members that only this one needs; the others are left as a node of their own
    behind  an elementwise or fused node that reads nothing but its result

Nothing else may read the operand, or the result where it is taken in; no value between two of the
nodes is an output or kept; and all have one phase, mirror count and segment. A group does not grow
further, and a node is in one group at most.

Invariant: the fused node stands where the first of its nodes stood, so it reads nothing later than
that node did, and whatever was live only until the first step is dead behind it as before.

Bytes. Where no input dies with the node before, the operand had bytes of its own; no step needs
more if the result and the workspace of the fused kernel are no larger than the operand. Where
inputs die there, the operand may have been written over one. They are now live in the reduction,
which is safe if it ran next, no members are left, and they are no larger than the operand. What a
node behind makes must be no larger than the result that it read. Fusions that are not safe by
these rules are made only if the graph with all of them has no more live bytes at its peak.

Sums are ordered as if the operand were stored, so the bits stay the same. NumPy would have to
store it: plans for a CPU do without this pass. Cost: O(V + E) for the search, and the storages of
two graphs where a fusion is not safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from graphc.allocation.allocate import Allocation
from graphc.ir.graph import Graph, Input, Node, State, Value
from graphc.ir.rewrite import Rewriter, instead
from graphc.ir.types import align, axes_in_memory, contiguous_strides
from graphc.ops.fused import (
    Fused,
    FusedAttributes,
    Member,
    is_fusible,
    members_of,
    share_arithmetic,
)
from graphc.ops.fused_reduce import REDUCTIONS, FusedReduce, FusedReduceAttributes
from graphc.passes.fusion.elementwise import MOST_INPUTS, Lasting
from graphc.passes.precision import casts_a_parameter


def fuse_reductions(given: Allocation, recomputes: bool = False) -> Graph:
    """The graph with reductions that compute their operands on the way, where this costs no bytes.

    Those that are safe are always fused, the others if the graph with all of them has no more live
    bytes at its peak. For a plan that `recomputes` they stay apart, since its peak is another one.
    """
    graph = given.graph
    found = _Search(given, recomputes).run()
    safe = [each for each in found if each.is_safe]
    if len(found) > len(safe) and not recomputes:
        every = _rebuilt(graph, found)
        if given.of(every).live_bytes <= given.live_bytes:
            return every
    return _rebuilt(graph, safe) if safe else graph


@dataclass(frozen=True, slots=True)
class _Group:
    """The members of a group, the values that they call x0, x1, ..., and the members it returns."""

    members: tuple[Member, ...]
    inputs: tuple[Value, ...]
    results: tuple[int, ...]

    def part(self, numbers: Sequence[int], outputs: Mapping[int, Value]) -> _Group:
        """The members of these numbers as a group of their own.

        It reads `outputs`, by member, where it needs what members outside of it compute.
        """
        inputs: dict[Value, str] = {}

        def renamed(name: str) -> str:
            number = int(name[1:])
            if name[0] == "m" and number in numbers:
                return f"m{numbers.index(number)}"
            value = self.inputs[number] if name[0] == "x" else outputs[number]
            return inputs.setdefault(value, f"x{len(inputs)}")

        members = [
            replace(
                self.members[number], operands=tuple(map(renamed, self.members[number].operands))
            )
            for number in numbers
        ]
        results = tuple(numbers.index(number) for number in self.results if number in numbers)
        return _Group(tuple(members), tuple(inputs), results)

    @property
    def calls(self) -> tuple[str, ...]:
        return tuple(map(str, self.members))


@dataclass(frozen=True, slots=True)
class _Fusion:
    """Nodes that become one, in their order; what stands for them; the rest of a split group."""

    nodes: tuple[Node, ...]
    fused: Node
    operand: Value | None
    """The reduction's operand, where it is stored no longer."""
    rest: Node | None
    is_safe: bool
    """Whether the fusion costs no bytes, whatever the rest of the graph is like."""


class _Search:
    """Finds reductions that may take what makes their operand, or what follows them."""

    def __init__(self, given: Allocation, recomputes: bool) -> None:
        self.graph, self.target, self.strides = given.graph, given.target, given.strides
        self.alignment = given.alignment
        self.recomputes = recomputes
        graph = given.graph
        self.originals = {node.copy_of for node in graph.nodes if node.copy_of is not None}
        self.lasting = Lasting(graph)

    def run(self) -> list[_Fusion]:
        """Find all fusions, front to back; a node is in one of them at most."""
        found: list[_Fusion] = []
        taken: set[Node] = set()
        for node in self.graph.nodes:
            if node.op.name not in REDUCTIONS:
                continue
            fusion = self.fusion(node, taken)
            if fusion is not None:
                found.append(fusion)
                taken.update(fusion.nodes)
        return found

    def fusion(self, reduction: Node, taken: set[Node]) -> _Fusion | None:
        """The fusion of a reduction and its neighbours; None if it has none that may join."""
        maker = reduction.inputs[0].node
        if maker is None or maker in taken or not self.may_join(reduction, maker):
            maker = None
        part, rest = (None, None) if maker is None else self.parts(maker, reduction)
        before = maker if part is not None else None
        behind = self.behind(reduction)
        if before is None and behind is None:
            return None
        fused = self.fused(reduction, part, behind)
        nodes = tuple(node for node in (before, reduction, behind) if node is not None)
        is_safe = behind is None or self.bytes(behind.output) <= self.bytes(reduction.output)
        if before is not None:
            is_safe = is_safe and self.is_safe(reduction, before, fused, rest)
        operand = reduction.inputs[0] if before is not None else None
        return _Fusion(nodes, fused, operand, rest, is_safe)

    def may_join(self, reduction: Node, maker: Node) -> bool:
        """Whether a reduction may take what makes its operand."""
        operand = reduction.inputs[0]
        return (
            _is_elementwise(maker)
            and operand.type.dtype.kind == "float"
            and reduction.output not in self.graph.kept
            and self.is_only_read_by(operand, reduction)
            and not casts_a_parameter(maker)
        )

    def is_only_read_by(self, value: Value, reader: Node) -> bool:
        """Whether nothing else needs the value, and one node may stand for reader and maker."""
        return (
            self.graph.uses[value] == [self.graph.position[reader]]
            and value not in self.graph.visible
            and self.stays_single(reader)
            and self.stays_single(value.producer)
            and _place(reader) == _place(value.producer)
        )

    def behind(self, reduction: Node) -> Node | None:
        """The elementwise node that alone reads a reduction's result, and nothing else, if any."""
        result = reduction.output
        if result.type.dtype.kind != "float" or not self.graph.uses[result]:
            return None
        node = self.graph.nodes[self.graph.uses[result][0]]
        may_join = (
            _is_elementwise(node)
            and {*node.inputs} == {result}
            and len(node.outputs) == 1
            and reduction.inputs[0].type.dtype.kind == "float"
            and node.output not in self.graph.kept
            and self.is_only_read_by(result, node)
        )
        return node if may_join else None

    def stays_single(self, node: Node) -> bool:
        """Whether the node is no copy, and has none."""
        return node.phase != "mirror" and node.copy_of is None and node not in self.originals

    def parts(self, maker: Node, reduction: Node) -> tuple[_Group | None, Node | None]:
        """The members of `maker` that go to the reduction, and a node of the others, if any stay.

        No member goes if a value that is not stored now would have to be, or if too much is read.
        """
        group, operand = _group_of(maker), reduction.inputs[0]
        number = group.results[operand.index]
        taken = _taken(group, number)
        left = [each for each in range(len(group.members)) if each not in taken]
        read = {
            int(name[1:])
            for each in taken for name in group.members[each].names if name[0] == "m"
        }  # fmt: skip
        is_needed = any(f"m{number}" in group.members[each].operands for each in left)
        if is_needed or not read - {*taken} <= {*group.results}:
            return None, None
        rest, outputs = self.rest(maker, group, left)
        part = group.part(taken, outputs)
        return (part, rest) if len(part.inputs) <= MOST_INPUTS else (None, None)

    def fused(self, reduction: Node, part: _Group | None, behind: Node | None) -> Node:
        """The node that stands for a reduction, members that it takes, and the node behind it."""
        operand, given = reduction.inputs[0], reduction.attributes
        last = reduction if behind is None else behind
        strides = self.strides.get(operand, contiguous_strides(operand.type))
        attributes = FusedReduceAttributes(
            () if part is None else part.calls,
            reduction.op.name,
            getattr(given, "axes", tuple(range(operand.type.rank))),
            getattr(given, "keepdims", False),
            axes_in_memory(operand.shape, strides),
            () if behind is None else _group_of(behind).calls,
        )
        inputs = (operand,) if part is None else part.inputs
        return instead(last, FusedReduce.name, inputs, attributes, [last.output.type])

    def rest(
        self, maker: Node, group: _Group, left: Sequence[int]
    ) -> tuple[Node | None, dict[int, Value]]:
        """A node of the members that are left, and by member the output that it has there."""
        if not left:
            return None, {}
        part = group.part(left, {})
        results = [number for number in group.results if number in left]
        types = tuple(maker.outputs[group.results.index(number)].type for number in results)
        if len(left) == 1:
            (member,) = part.members
            given = [part.inputs[int(name[1:])] for name in member.operands]
            rest = instead(maker, member.op.name, given, member.attributes, types)
        else:
            attributes = FusedAttributes(part.calls, part.results)
            rest = instead(maker, Fused.name, part.inputs, attributes, types)
        return rest, dict(zip(results, rest.outputs, strict=True))

    def bytes(self, value: Value) -> int:
        """What a value takes in the arena."""
        return align(value.type.bytes, self.alignment)

    def is_safe(self, reduction: Node, maker: Node, fused: Node, rest: Node | None) -> bool:
        """Whether no step has more bytes live than with reduction and maker apart."""
        step, operand = self.graph.position[maker], self.bytes(reduction.inputs[0])
        scratch = self.target.workspace(fused, {})
        own = self.bytes(fused.output) + sum(align(s.bytes, self.alignment) for s in scratch)
        dying = self.dying(maker, fused)
        if not dying:  # then the operand had bytes of its own
            return own <= operand
        # What dies with the maker is now live in the reduction, and was not after it.
        is_next = (
            self.lasting.others[self.graph.position[reduction]] == (self.lasting.others[step + 1])
        )
        return rest is None and is_next and sum(dying) <= operand

    def dying(self, maker: Node, fused: Node) -> list[int]:
        """Sizes of the roots that the fused node reads, and maybe nothing behind the maker.

        In a plan that recomputes, any value may have its last reader here.
        """
        roots = {self.graph.roots[v]: None for v in fused.inputs if v in self.graph.roots}
        step = len(self.graph.nodes) if self.recomputes else self.graph.position[maker]
        return [
            self.bytes(root)
            for root in roots
            if self.lasting.last[root] <= step and not isinstance(root, State | Input)
        ]


def _is_elementwise(node: Node) -> bool:
    """Whether a node is a group or may be a member of one."""
    dtypes = [value.type.dtype for value in (*node.inputs, *node.outputs)]
    return (is_fusible(node.op) or isinstance(node.op, Fused)) and share_arithmetic(dtypes)


def _place(node: Node) -> tuple[str, int, str]:
    """What nodes must have in common to be recomputed alike: phase, mirror count and segment."""
    return node.phase, node.mirror, node.segment


def _group_of(maker: Node) -> _Group:
    """The group of a fused node, or an elementwise node as a group of one."""
    if isinstance(maker.op, Fused):
        members = members_of(maker.attributes)
        return _Group(members, maker.inputs, maker.attributes.results)
    names = {v: f"x{i}" for i, v in enumerate(dict.fromkeys(maker.inputs))}
    member = Member(maker.op, tuple(names[v] for v in maker.inputs), maker.attributes)
    return _Group((member,), tuple(names), (0,))


def _taken(group: _Group, number: int) -> list[int]:
    """The numbers of a member and of those that only it needs, ascending."""
    taken = {number}
    for earlier in reversed(range(number)):
        readers = [i for i, m in enumerate(group.members) if f"m{earlier}" in m.operands]
        if earlier not in group.results and taken.issuperset(readers):
            taken.add(earlier)
    return sorted(taken)


def _rebuilt(graph: Graph, fusions: Sequence[_Fusion]) -> Graph:
    """The graph with fused nodes where their operands were made."""
    by_first = {fusion.nodes[0]: fusion for fusion in fusions}
    later = {node for fusion in fusions for node in fusion.nodes[1:]}
    rewriter = Rewriter(graph)
    for node in graph.nodes:
        fusion = by_first.get(node)
        if fusion is None:
            if node not in later:
                rewriter.put(node, rewriter.moved(node))
            continue
        if fusion.rest is not None:
            kept = [value for value in node.outputs if value is not fusion.operand]
            rest = rewriter.add(rewriter.moved(fusion.rest))
            rewriter.stand(fusion.rest.outputs, rest.outputs)  # what the fused node may read
            rewriter.stand(kept, rest.outputs)
        fused = rewriter.add(rewriter.moved(fusion.fused))
        rewriter.stand(fusion.nodes[-1].outputs, fused.outputs)
    return rewriter.result()
