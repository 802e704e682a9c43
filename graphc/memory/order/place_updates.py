"""Early updates of states, so that gradients die early."""

from __future__ import annotations

from graphc.ir.graph import Graph, Node, Value


def place_updates(graph: Graph) -> Graph:
    """Run every update as early as possible: after its operands and after other uses of the state.

    A parameter's gradient is then freed at once, so gradients of several parameters need not be
    live together. Other nodes keep their order.
    """
    readers: dict[Value, list[int]] = {}
    """Replaced value → the steps that read it or a view of it."""
    for value, root in graph.roots.items():
        if root in graph.replaced:
            readers.setdefault(root, []).extend(graph.uses[value])
    moved: dict[int, int] = {}
    """Step of an update → the step after which it runs instead."""
    slots: list[tuple[int, bool, int, Node]] = []
    for step, node in enumerate(graph.nodes):
        at = step
        if node.op.has_effect:
            before = [graph.position[v.node] for v in node.inputs if v.node is not None]
            for state in node.replaced.values():
                before += [reader for reader in readers.get(state, ()) if reader != step]
            at = moved[step] = max((moved.get(other, other) for other in before), default=step)
        slots.append((at, node.op.has_effect, step, node))
    slots.sort(key=lambda slot: slot[:3])  # an update follows the last use
    return graph.in_order(node for *_, node in slots)
