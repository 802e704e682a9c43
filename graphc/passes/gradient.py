"""The gradient graph with mirrored forward nodes: Alg. 2 of "Training deep nets with sublinear
memory cost" (Chen, Xu, Zhang and Guestrin, 2016).

Let m(v) say how often node v may be computed again, and v.k be its mirrored copy number k, v.0
itself. A copy reads, of every operand u, the copy of the same level, or the last one that u has:

    v.k reads u.min(k, m(u))        for 1 ≤ k ≤ m(v)
    a[v] = v.m(v)

The gradient of v takes the gradients of what reads v, and a[·] of its operands and results:

    g[v] = gradient(g[successors of v], a[v], a[u] for u in pred[v])

The order V' is that of execution: the forward graph, and then, for v in reverse, what g[v] needs
and V' does not have yet, copies in the order of the forward graph, and g[v]. The paper makes all
copies first and orders them so afterwards; here a copy is made when the first gradient that reads
it is, so nodes are created in the order V'. A copy that no gradient needs is not made.

With m = 0 this is the plain gradient graph; with m = 1 inside segments and 0 at their ends, a
segment runs again as its gradient begins. A node and its copies are made once each: O(nodes ·
largest m).

`compile` does not use counts here: it differentiates with m = 0, and adds copies by a sequence of
steps (remat/schedule.py), since planners of budgets choose more than counts can say.
Counts are for `graphc.gradient`, where the user builds the gradient graph. That both give one graph
is held by test_the_sequence_of_mirror_counts_is_algorithm_2 in
tests/remat/test_schedule.py.

Where a value has several readers, their contributions are added as each appears. The sum may
overwrite its operand, so a shared weight costs one buffer, however often it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from graphc.errors import GradientError
from graphc.ir import builder
from graphc.ir.graph import Node, Value, ancestors
from graphc.ir.op_class import GradientRule
from graphc.ops.choice import cast
from graphc.ops.elementwise import add
from graphc.ops.reduce import sum_to
from graphc.ops.shape import full, zeros_like
from graphc.passes.precision import casts_a_parameter

MirrorCount = Callable[[Node], int]


def gradient(
    loss: Value,
    wrt: Sequence[Value],
    mirror: MirrorCount | None = None,
    kept: Iterable[Value] = (),
) -> tuple[Value, ...]:
    """The derivatives of a scalar by each value of `wrt`, as new values that can be differentiated.

    `mirror(node)` is the paper's m: how often a forward node may be computed again (default 0).
    Nodes that produce a `kept` value have count 0. A value that the loss does not depend on gets
    zeros of its own type. Raises `GradientError` for a loss that is no float scalar, for a `wrt`
    that is not float, and where a path leads through an op without a gradient.
    """
    wrt = builder.as_values("wrt", wrt)
    _check_arguments(loss, wrt)
    nodes = ancestors([loss])
    counts = mirror_counts(nodes, mirror, kept) if mirror else {}
    return _Differentiation(nodes, counts).run(loss, wrt)


def _check_arguments(loss: Value, wrt: Sequence[Value]) -> None:
    if not isinstance(loss, Value):
        raise GradientError(f"the loss must be a graphc value, got {loss!r}")
    if loss.shape != () or loss.type.dtype.kind != "float":
        raise GradientError(
            f"the loss must be a float scalar, got {loss.type}; reduce it with graphc.sum or "
            "graphc.mean, or convert it with graphc.cast"
        )
    for value in wrt:
        if value.type.dtype.kind != "float":
            raise GradientError(
                f"{value!r} is not float, so it has no derivative; leave it out of wrt"
            )


def mirror_counts(
    nodes: Sequence[Node], mirror: MirrorCount, kept: Iterable[Value]
) -> dict[Node, int]:
    """Node → its mirror count m, 0 for nodes that make a `kept` value and for effects.

    A view follows the node whose bytes it views: it has none of its own.
    """
    fixed = {value.node for value in kept}
    # Backwards, so that a view of a view passes it on in the same walk.
    for node in reversed(nodes):
        if node in fixed and (viewed := node.viewed) is not None:
            fixed.add(viewed.node)
    counts: dict[Node, int] = {}
    for node in nodes:
        # Forwards again: what is viewed has its count before its views ask for it.
        if node in fixed or node.op.has_effect:
            counts[node] = 0
        elif (viewed := node.viewed) is not None:
            # What is viewed may be made elsewhere, as gathered parameters are: then it stays.
            counts[node] = 0 if viewed.node is None else counts.get(viewed.node, 0)
        else:
            counts[node] = mirror(node)
    return counts


def _each(function: Callable[[Value], Any], values: Value | tuple[Value, ...]) -> Any:
    return tuple(map(function, values)) if isinstance(values, tuple) else function(values)


class _Differentiation:
    """One run of Alg. 2: `copies` has v.k by (v, k), `gradients` has g[v] so far."""

    def __init__(self, nodes: Sequence[Node], counts: dict[Node, int]) -> None:
        self.nodes = nodes
        self.counts = counts
        self.copies: dict[tuple[Node, int], Node] = {}
        self.gradients: dict[Value, Value] = {}
        self.active: set[Value] = set()

    def run(self, loss: Value, wrt: Sequence[Value]) -> tuple[Value, ...]:
        """The gradients by each value of `wrt`: forward nodes are differentiated back to front."""
        self.mark_active(wrt)
        if loss in self.active:
            with builder.in_phase("gradient"):
                self.gradients[loss] = full((), 1.0, loss.type.dtype)
            for node in reversed(self.nodes):
                # In reverse, all readers of a node come before it, so its gradient is complete by
                # now.
                if any(value in self.gradients for value in node.outputs):
                    with builder.in_phase("gradient", node.scope, node.segment):
                        self.differentiate(node)
        results = []
        for value in wrt:
            found = self.gradients.get(value)
            with builder.in_phase("gradient"):
                # Independent of the loss, and still a value that can be differentiated and updated
                # with.
                results.append(zeros_like(value) if found is None else found)
        return tuple(results)

    def mark_active(self, wrt: Sequence[Value]) -> None:
        """Find the float values that depend on one of `wrt`: only they carry a gradient."""
        self.active = set(wrt)
        for node in self.nodes:
            if any(self.passes_back(node, index) for index in range(len(node.inputs))):
                floats = (value for value in node.outputs if value.type.dtype.kind == "float")
                self.active.update(floats)

    def passes_back(self, node: Node, index: int) -> bool:
        """Whether an input is active and may get a gradient: a rule that reads nothing gives 0.

        Without a rule it may, so that an error names the op if it does.
        """
        if node.inputs[index] not in self.active:
            return False
        rule = node.op.gradients.get(node.op.input_name(index))
        return rule is None or bool(rule.reads)

    def differentiate(self, node: Node) -> None:
        """Add this node's contributions to the gradients of its active inputs.

        Last input first: by convention bias, then weight, then data, so that the data may die
        before its gradient needs bytes.
        """
        for name, value in reversed(node.named_inputs().items()):
            values = value if isinstance(value, tuple) else (value,)
            if not any(v in self.active for v in values):
                continue
            contribution = self.contribution(node, name)
            if contribution is None:
                continue
            parts = contribution if isinstance(contribution, tuple) else (contribution,)
            for target, part in zip(values, parts, strict=True):
                if target in self.active and part is not None:
                    self.accumulate(target, part)

    def contribution(self, node: Node, name: str) -> Any:
        """What a node adds to the gradient of its input `name`: a value, or None for zero.

        Of a variadic input it is a tuple of these.
        """
        rule = node.op.gradients.get(name)
        if rule is None:
            cure = node.op.instead_of_gradient.get(name, "use another op")
            raise GradientError(
                f"{node.label} has no gradient by its input {name!r}, but the loss depends on it "
                f"through this node; leave what lies behind it out of wrt, or {cure}"
            )
        return rule.method(node.op, node, **self.arguments(node, name, rule))

    def arguments(self, node: Node, source: str, rule: GradientRule) -> dict[str, Any]:
        """The arguments of the gradient rule of input `source`: incoming gradients, and the latest
        copies of values."""
        inputs, outputs = node.named_inputs(), node.named_outputs()
        for name, value in outputs.items():
            values = value if isinstance(value, tuple) else (value,)
            # A rule that names no d-output of a value that has a gradient would drop it in silence.
            flows = any(v in self.gradients for v in values)
            flows = flows and source not in node.op.independent.get(name, ())
            if flows and rule.reads and f"d{name}" not in rule.reads:
                raise GradientError(
                    f"{node.label} passes no gradient back from its output {name!r}; the loss may "
                    "not depend on it"
                )
        named: dict[str, Any] = {}
        for name in rule.reads:
            if name in inputs or name in outputs:
                read = inputs[name] if name in inputs else outputs[name]
                named[name] = _each(self.latest, read)
            else:
                named[name] = _each(self.gradients.get, outputs[name.removeprefix("d")])
        return named

    def accumulate(self, target: Value, part: Value) -> None:
        """Add a contribution to the gradient of a value, summed over axes that were broadcast."""
        if part.shape != target.shape:
            part = sum_to(part, target.shape)
        if target.node is not None and casts_a_parameter(target.node):
            # What the 16-bit copy of a shared parameter gets is summed in float32.
            (target,) = target.node.inputs
            part = cast(part, target.type.dtype)
        if part.type != target.type:
            raise GradientError(
                f"a gradient of {target!r} has the type {part.type}; an op's gradient rule is wrong"
            )
        earlier = self.gradients.get(target)
        # The order of contributions fixes the order of the sum, and so its bits.
        self.gradients[target] = part if earlier is None else add(earlier, part)

    def latest(self, value: Value) -> Value:
        """The last mirrored copy of a value: a[v] of Alg. 2."""
        # Inputs and states are there anyway; a count of 0 says that v.0 is kept.
        if value.node is None or not self.counts.get(value.node):
            return value
        return self.copy(value.node, self.counts[value.node]).outputs[value.index]

    def copy(self, node: Node, level: int) -> Node:
        """Mirrored copy number `level`, made on first need together with the copies it reads."""
        if (node, level) in self.copies:
            return self.copies[node, level]
        needed: set[tuple[Node, int]] = set()
        pending = [(node, level)]
        while pending:
            key = pending.pop()
            # What an earlier gradient asked for stands already: it is read, not made again.
            if key in needed or key in self.copies:
                continue
            needed.add(key)
            pending.extend(self.sources(*key))
        # By serial, that is in the order of the forward graph: what a copy reads is made before it.
        for original, count in sorted(needed, key=lambda key: (key[0].serial, key[1])):
            inputs = [self.copied_input(value, count) for value in original.inputs]
            self.copies[original, count] = builder.copy(
                original, inputs, phase="mirror", mirror=0, copy_of=original, level=count
            )
        return self.copies[node, level]

    def sources(self, node: Node, level: int) -> list[tuple[Node, int]]:
        """The copies that copy `level` of a node reads: those of the same or the last level."""
        producers = (value.node for value in node.inputs if value.node is not None)
        levels = ((producer, min(level, self.counts[producer])) for producer in producers)
        return [(producer, count) for producer, count in levels if count > 0]

    def copied_input(self, value: Value, level: int) -> Value:
        """What copy number `level` of a node reads for an operand: u.min(k, m(u)) of Alg. 2."""
        if value.node is None:
            return value
        count = min(level, self.counts[value.node])
        return self.copies[value.node, count].outputs[value.index] if count else value
