"""Symbolic gradients with mirrored forward nodes: Alg. 2 of "Training Deep Nets with Sublinear
Memory Cost" (Chen, Xu, Zhang and Guestrin, 2016).

Let m(v) be the number of times that node v may be recomputed. Let v.k be its mirrored copy number
k, with v.0 = v. For each operand u, a copy reads the copy of u of the same level, or the last copy
of u:

    v.k reads u.min(k, m(u))        for 1 ≤ k ≤ m(v)
    a[v] = v.m(v)

The gradient of v takes the gradients of the consumers of v, and a[·] of its operands and results:

    g[v] = gradient(g[successors of v], a[v], a[u] for u in pred[v])

The execution order V' starts with the forward graph. Then, for each v in reverse, it has the copies
that g[v] needs and V' does not have yet, in forward order, followed by g[v]. The paper creates all
copies first and orders them afterwards. Here the first gradient that reads a copy creates it, so
nodes are created in the order V'. A copy that no gradient needs is not created.

With m = 0 this is the plain gradient graph. With m = 1 inside segments and 0 at their ends, a
segment is recomputed when its gradient begins. Each node and each copy is created once: O(nodes ·
largest m).

`compile` does not use counts here. It differentiates with m = 0 and adds copies by a sequence of
steps (memory/schedule.py), since budget planners need more choices than counts can express. Counts
are for `graphc.gradient`, where the user builds the gradient graph.
test_the_sequence_of_mirror_counts_is_algorithm_2 in tests/memory/test_schedule.py checks that both
give the same graph.

If a value has several consumers, their contributions are added as they appear. The sum may
overwrite its operand, so a shared weight costs one buffer, however often it is used. Gradients of
disjoint slices are added together instead, see `graphc.passes.slice_gradients`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from graphc.errors import GradientError
from graphc.ir import builder
from graphc.ir.ancestors import ancestors
from graphc.ir.graph import Node, Value
from graphc.ir.op_class import GradientRule
from graphc.ir.types import FLOAT8
from graphc.memory.mirror_counts import MirrorCount, mirror_counts
from graphc.ops.choice import cast
from graphc.ops.elementwise import add
from graphc.ops.float8 import casts_a_parameter
from graphc.ops.reduce import sum_to
from graphc.ops.shape import full, zeros_like
from graphc.passes.slice_gradients import DisjointSlices, cut_axis


def gradient(
    loss: Value,
    wrt: Sequence[Value],
    mirror: MirrorCount | None = None,
    kept: Iterable[Value] = (),
) -> tuple[Value, ...]:
    """Return the derivatives of a scalar with respect to `wrt`, as new differentiable values.

    `mirror(node)` is the paper's m: the number of times that a forward node may be recomputed
    (default 0). Nodes that produce a `kept` value have count 0. A value on which the loss does not
    depend gets zeros of its own type. Raises `GradientError` if the loss is not a float scalar, if
    a value of `wrt` is not float, or if a path leads through an op without a gradient.
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
                f"{value!r} is not float, so it has no derivative; omit it from wrt"
            )


def _each(function: Callable[[Value], Any], values: Value | tuple[Value, ...]) -> Any:
    return tuple(map(function, values)) if isinstance(values, tuple) else function(values)


class _Differentiation:
    """One run of Alg. 2: `copies` maps (v, k) to v.k, `gradients` holds g[v] so far.

    `slices` holds contributions to g[v] that are disjoint slices and not yet added, or None after
    the first two slices overlapped.
    """

    def __init__(self, nodes: Sequence[Node], counts: dict[Node, int]) -> None:
        self.nodes = nodes
        self.counts = counts
        self.copies: dict[tuple[Node, int], Node] = {}
        self.gradients: dict[Value, Value] = {}
        self.slices: dict[Value, DisjointSlices | None] = {}
        self.active: set[Value] = set()

    def run(self, loss: Value, wrt: Sequence[Value]) -> tuple[Value, ...]:
        """Return the gradients of `loss` with respect to each value of `wrt`.

        Forward nodes are visited in reverse order.
        """
        self.mark_active(wrt)
        if loss in self.active:
            with builder.in_phase("gradient"):
                self.gradients[loss] = full((), 1.0, loss.type.dtype)
            for node in reversed(self.nodes):
                # In reverse order, all consumers of a node come first, so its gradient is complete.
                with builder.in_phase("gradient", node.scope, node.segment):
                    self.add_slices(node.outputs)
                    if any(value in self.gradients for value in node.outputs):
                        self.differentiate(node)
        results = []
        for value in wrt:
            with builder.in_phase("gradient"):
                self.add_slices([value])
                found = self.gradients.get(value)
                # Independent of the loss, but still a value to differentiate and to update with.
                results.append(zeros_like(value) if found is None else found)
        return tuple(results)

    def mark_active(self, wrt: Sequence[Value]) -> None:
        """Find the active values: float values that depend on a value of `wrt`.

        Only they have gradients.
        """
        self.active = set(wrt)
        for node in self.nodes:
            if any(self.passes_back(node, index) for index in range(len(node.inputs))):
                floats = (v for v in node.outputs if v.type.dtype.kind in ("float", "float8"))
                self.active.update(floats)

    def passes_back(self, node: Node, index: int) -> bool:
        """Return True if input number `index` of a node is active and its gradient may not be zero.

        A gradient rule that reads no gradient must return None, for zero. An input without a rule
        counts as one with a gradient, so that `contribution` raises an error that names the op.
        """
        if node.inputs[index] not in self.active:
            return False
        name = node.op.input_name(index)
        rule = node.op.gradients.get(name)
        if rule is None or rule.reads:
            return True
        if rule.method(node.op, node) is not None:
            raise GradientError(
                f"the gradient of {node.label} with respect to {name!r} depends on no gradient of "
                f"an output; add {' or '.join(f'd{output}' for output in node.op.outputs)} to the "
                "parameters of its function, or return None"
            )
        return False

    def differentiate(self, node: Node) -> None:
        """Add this node's contributions to the gradients of its active inputs.

        Inputs are processed last to first: by convention bias, then weight, then data. So the bytes
        of the data can be reused for its gradient.
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
        """Return a node's contribution to the gradient of its input `name`, or None for zero.

        For a variadic input this is a tuple.
        """
        rule = node.op.gradients.get(name)
        if rule is None:
            cure = node.op.instead_of_gradient.get(name, "use another op")
            raise GradientError(
                f"{node.label} has no gradient with respect to its input {name!r}, but the loss "
                f"depends on that input; omit the values that {name!r} depends on from wrt, or "
                f"{cure}"
            )
        return rule.method(node.op, node, **self.arguments(node, name, rule))

    def arguments(self, node: Node, source: str, rule: GradientRule) -> dict[str, Any]:
        """Return the arguments of the gradient rule for input `source` of a node.

        These are the gradients of outputs, and the last copies of operands and results, that the
        rule reads.
        """
        inputs, outputs = node.named_inputs(), node.named_outputs()
        for name, value in outputs.items():
            values = value if isinstance(value, tuple) else (value,)
            # A rule that does not read the gradient of such an output would drop it silently.
            flows = any(v in self.gradients for v in values)
            flows = flows and source not in node.op.independent.get(name, ())
            if flows and rule.reads and f"d{name}" not in rule.reads:
                raise GradientError(
                    f"{node.label} has no gradient for its output {name!r}, so the loss must not "
                    "depend on that output"
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
        """Add a contribution to the gradient of a value.

        It is first summed over the axes along which the value was broadcast.
        """
        if part.shape != target.shape:
            part = sum_to(part, target.shape)
        if target.node is not None and casts_a_parameter(target.node):
            # Gradients of the narrow copy of a shared parameter are summed in float32.
            (parameter, *_) = target.node.inputs
            part = cast(part, parameter.type.dtype)
            target = target if target.type.dtype in FLOAT8 else parameter
        # The gradient of an 8-bit value has the dtype of the products that compute it.
        if part.type != target.type and target.type.dtype not in FLOAT8:
            raise GradientError(
                f"a gradient of {target!r} has the type {part.type}; an op's gradient rule is wrong"
            )
        axis = cut_axis(part)
        slices = None if axis is None else self.slices.setdefault(target, DisjointSlices(axis))
        if axis is None or slices is None:
            self.add(target, part)
        elif not slices.insert(part):
            self.add_slices([target])
            # A padded slice is as large as the whole, so none waits if the first two overlap.
            self.slices[target] = DisjointSlices(axis) if len(slices.nodes) > 1 else None
            self.accumulate(target, part)

    def add_slices(self, values: Iterable[Value]) -> None:
        """Add the slices that wait to the gradients of values."""
        for value in values:
            slices = self.slices.pop(value, None)
            if slices is not None:
                self.add(value, slices.sum())

    def add(self, target: Value, part: Value) -> None:
        """Add a contribution of the type of the gradient to the gradient of a value."""
        earlier = self.gradients.get(target)
        # The order of contributions fixes the order of the sum, and so its bits.
        self.gradients[target] = part if earlier is None else add(earlier, part)

    def latest(self, value: Value) -> Value:
        """Return the last mirrored copy of a value, a[v] of Alg. 2.

        It is the value itself if nothing recomputes it.
        """
        # Inputs and states are always available; a count of 0 means that v.0 is saved.
        if value.node is None or not self.counts.get(value.node):
            return value
        return self.copy(value.node, self.counts[value.node]).outputs[value.index]

    def copy(self, node: Node, level: int) -> Node:
        """Return mirrored copy number `level` of a node.

        The first call creates it, and the copies that it reads.
        """
        if (node, level) in self.copies:
            return self.copies[node, level]
        needed: set[tuple[Node, int]] = set()
        pending = [(node, level)]
        while pending:
            key = pending.pop()
            # Copies that an earlier gradient created are reused.
            if key in needed or key in self.copies:
                continue
            needed.add(key)
            pending.extend(self.sources(*key))
        # By serial number, which is forward order: a copy's operands are created before it.
        for original, count in sorted(needed, key=lambda key: (key[0].serial, key[1])):
            inputs = [self.copied_input(value, count) for value in original.inputs]
            self.copies[original, count] = builder.copy(
                original, inputs, phase="mirror", mirror=0, copy_of=original, level=count
            )
        return self.copies[node, level]

    def sources(self, node: Node, level: int) -> list[tuple[Node, int]]:
        """Return the (node, level) of each copy that copy number `level` of a node reads.

        For each operand it is the copy of the same level, or the last copy.
        """
        producers = (value.node for value in node.inputs if value.node is not None)
        levels = ((producer, min(level, self.counts[producer])) for producer in producers)
        return [(producer, count) for producer, count in levels if count > 0]

    def copied_input(self, value: Value, level: int) -> Value:
        """Return the operand that copy number `level` of a node reads for `value`.

        It is u.min(k, m(u)) of Alg. 2.
        """
        if value.node is None:
            return value
        count = min(level, self.counts[value.node])
        return self.copies[value.node, count].outputs[value.index] if count else value
