"""Fusion of reductions with their producers and consumers on GPUs: one kernel, not two or three.

The operand of a fused reduction needs no bytes. The pass runs after the fusion of `elementwise.py`.
A group is a sum, mean, maximum or sum of squares, and at least one of

    before  the elementwise node that produces its operand; or, of a fused node, the member that
            produces it and members that only this one needs, while the others stay as a node
    behind  an elementwise or fused node that reads nothing but its result

The operand must have no other use. If a node behind the reduction is fused, the result must have no
other use either. Values between the fused nodes must not be outputs of the graph, nor marked as
kept. All nodes have the same phase, mirror count and segment. A group does not grow further, and a
node is in at most one group.

Invariant: the fused node takes the position of the first of its nodes, so it reads nothing later
than that node did. Values whose last use was this first node still have their last use there.

Bytes: a fusion is safe if no step can have more live bytes than before. Call the producer of the
operand P. If no input has its last use at P, the operand had bytes of its own. The fusion is then
safe if the result and the workspace of the fused kernel are no larger than the operand. If inputs
have their last use at P, the operand may have overwritten one of them, and now these inputs are
live in the reduction. The fusion is then safe if the reduction ran right after P, no members of P
remain, and these inputs are no larger than the operand. The result of a node behind must be no
larger than the result of the reduction. Fusions that these rules do not prove safe are done only if
the peak live bytes of the graph with all of them are not higher.

Sums are ordered as if the operand were stored, so the bits stay the same. NumPy would have to store
it, so plans for a CPU do not use this pass. Cost: O(V + E) for the search, and the storages of two
graphs if a fusion is not safe.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from graphc.ir.graph import Graph, Input, Node, State, Value
from graphc.ir.rewrite import Rewriter, instead
from graphc.ir.types import align, axes_in_memory, contiguous_strides
from graphc.memory.allocate import Allocation
from graphc.ops.float8 import casts_a_parameter
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


def fuse_reductions(given: Allocation, recomputes: bool = False) -> Graph:
    """Return the graph with reductions that compute their operands, if this needs no more bytes.

    Safe fusions are always done. The others are done if the graph with all of them has no higher
    peak of live bytes. For a plan that `recomputes`, only safe fusions are done, since
    recomputation changes the peak.
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
    """The ops of a fused kernel: calls of members, input values, and the members to return.

    Calls refer to `inputs` as x0, x1, ... and to results of earlier members as m0, m1, ....
    """

    members: tuple[Member, ...]
    inputs: tuple[Value, ...]
    results: tuple[int, ...]

    def part(self, numbers: Sequence[int], outputs: Mapping[int, Value]) -> _Group:
        """Return the members with these numbers as a group of their own.

        The result of any other member becomes an input: `outputs` has the value by the number of
        the member.
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
    """The nodes of one fusion in their order, and the nodes that replace them.

    `fused` replaces all of them. If only some members of a group are fused, `rest` computes the
    others.
    """

    nodes: tuple[Node, ...]
    fused: Node
    operand: Value | None
    """The operand of the reduction, if the fused kernel computes it instead of reading it."""
    rest: Node | None
    is_safe: bool
    """True if the fusion cannot raise the live bytes of any step, whatever other nodes exist."""


class _Search:
    """A search for reductions that can be fused with their producer or their consumer.

    The producer is the node that computes the operand of the reduction.
    """

    def __init__(self, given: Allocation, recomputes: bool) -> None:
        self.graph, self.target, self.strides = given.graph, given.target, given.strides
        self.alignment = given.alignment
        self.recomputes = recomputes
        graph = given.graph
        self.originals = {node.copy_of for node in graph.nodes if node.copy_of is not None}
        self.lasting = Lasting(graph)

    def run(self) -> list[_Fusion]:
        """Return all fusions, front to back; a node is in at most one of them."""
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
        """Return the fusion of a reduction with its producer, its consumer or both, else None."""
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
        """Return True if a reduction may be fused with `maker`, the producer of its operand."""
        operand = reduction.inputs[0]
        return (
            _is_elementwise(maker)
            and operand.type.dtype.kind == "float"
            and reduction.output not in self.graph.kept
            and self.is_only_read_by(operand, reduction)
            and not casts_a_parameter(maker)
        )

    def is_only_read_by(self, value: Value, reader: Node) -> bool:
        """Return True if `reader` is a value's only use and can be merged with its producer."""
        return (
            self.graph.uses[value] == [self.graph.position[reader]]
            and value not in self.graph.visible
            and self.stays_single(reader)
            and self.stays_single(value.producer)
            and _place(reader) == _place(value.producer)
        )

    def behind(self, reduction: Node) -> Node | None:
        """Return the only consumer of a reduction's result, if it is elementwise.

        It must have no other operand. Returns None otherwise.
        """
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
        """Return True if a node is neither a recomputed copy nor the original of one."""
        return node.phase != "mirror" and node.copy_of is None and node not in self.originals

    def parts(self, maker: Node, reduction: Node) -> tuple[_Group | None, Node | None]:
        """Return the members of `maker` to fuse with the reduction, and a node for the others.

        `maker` is the producer of the reduction's operand. Nothing is fused if the rest would have
        to write a value that is not written now, or if the fused group would have too many inputs.
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
        """Return the node that replaces a reduction, the members fused before it, and `behind`."""
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
        """Return a node for the members `left` of a group, and its outputs by member number."""
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
        """Return the bytes of a value in the arena, including alignment."""
        return align(value.type.bytes, self.alignment)

    def is_safe(self, reduction: Node, maker: Node, fused: Node, rest: Node | None) -> bool:
        """Return True if the fused node cannot raise the live bytes of any step.

        `maker` is the producer of the reduction's operand, and `rest` has its members that are not
        fused.
        """
        step, operand = self.graph.position[maker], self.bytes(reduction.inputs[0])
        scratch = self.target.workspace(fused, {})
        own = self.bytes(fused.output) + sum(align(s.bytes, self.alignment) for s in scratch)
        dying = self.dying(maker, fused)
        if not dying:  # then the operand had bytes of its own
            return own <= operand
        # Inputs that died with the producer are now live in the reduction, and were not after it.
        is_next = (
            self.lasting.others[self.graph.position[reduction]] == (self.lasting.others[step + 1])
        )
        return rest is None and is_next and sum(dying) <= operand

    def dying(self, maker: Node, fused: Node) -> list[int]:
        """Return the sizes in bytes of operands of `fused` that may have their last use at `maker`.

        If the plan recomputes, any value may have its last use there.
        """
        roots = {self.graph.roots[v]: None for v in fused.inputs if v in self.graph.roots}
        step = len(self.graph.nodes) if self.recomputes else self.graph.position[maker]
        return [
            self.bytes(root)
            for root in roots
            if self.lasting.last[root] <= step and not isinstance(root, State | Input)
        ]


def _is_elementwise(node: Node) -> bool:
    """Return True if a node is a fused group, or could be a member of one."""
    dtypes = [value.type.dtype for value in (*node.inputs, *node.outputs)]
    return (is_fusible(node.op) or isinstance(node.op, Fused)) and share_arithmetic(dtypes)


def _place(node: Node) -> tuple[str, int, str]:
    """Return the attributes that fused nodes must share: phase, mirror count and segment.

    Nodes that share these are recomputed together.
    """
    return node.phase, node.mirror, node.segment


def _group_of(maker: Node) -> _Group:
    """Return the group of a fused node; for another elementwise node, a group of one member."""
    if isinstance(maker.op, Fused):
        members = members_of(maker.attributes)
        return _Group(members, maker.inputs, maker.attributes.results)
    names = {v: f"x{i}" for i, v in enumerate(dict.fromkeys(maker.inputs))}
    member = Member(maker.op, tuple(names[v] for v in maker.inputs), maker.attributes)
    return _Group((member,), tuple(names), (0,))


def _taken(group: _Group, number: int) -> list[int]:
    """Return the numbers of a member and of the earlier members that only it needs, ascending."""
    taken = {number}
    for earlier in reversed(range(number)):
        readers = [i for i, m in enumerate(group.members) if f"m{earlier}" in m.operands]
        if earlier not in group.results and taken.issuperset(readers):
            taken.add(earlier)
    return sorted(taken)


def _rebuilt(graph: Graph, fusions: Sequence[_Fusion]) -> Graph:
    """Return the graph with each fused node at the position of the first node that it replaces."""
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
            rewriter.stand(fusion.rest.outputs, rest.outputs)  # operands of the fused node
            rewriter.stand(kept, rest.outputs)
        fused = rewriter.add(rewriter.moved(fusion.fused))
        rewriter.stand(fusion.nodes[-1].outputs, fused.outputs)
    return rewriter.result()
