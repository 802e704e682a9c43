"""The order of nodes."""

from __future__ import annotations

from dataclasses import replace

from graphc.ir.graph import Graph, Node, Value


def place_updates(graph: Graph) -> Graph:
    """Run every update as early as it can: after what it reads and after the state's last reader.

    A parameter's gradient then dies at once, and parameter gradients need not live together.
    Other nodes keep their order.
    """
    shown: dict[Value, list[Value]] = {}
    for node in graph.nodes:
        if node.op.views is not None:
            shown.setdefault(node.inputs[0], []).extend(node.outputs)

    def readers_of(value: Value) -> list[int]:
        """Readers of a state and of all views of it."""
        steps = list(graph.uses[value])
        for view in shown.get(value, ()):
            steps += readers_of(view)
        return steps

    slots: list[tuple[int, bool, int, Node]] = []
    for step, node in enumerate(graph.nodes):
        at = step
        if node.op.has_effect:
            inputs = node.named_inputs()
            readers = [graph.position[v.node] for v in node.inputs if v.node is not None]
            for name in node.op.must_overwrite.values():
                state = inputs[name]
                assert not isinstance(state, tuple), "a state input is one value"
                readers += [use for use in readers_of(state) if use != step]
            at = max(readers, default=step)
        slots.append((at, node.op.has_effect, step, node))
    slots.sort(key=lambda slot: slot[:3])  # an update stands behind the last reader
    return replace(graph, nodes=tuple(node for *_, node in slots))
