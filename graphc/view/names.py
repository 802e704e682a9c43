"""What sentences call values, nodes and steps."""

from __future__ import annotations

from graphc.ir.graph import Node, Value
from graphc.plans.memory_plan import MemoryPlan


def origin(value: Value) -> str:
    """Scope and op of what computes a value; empty for inputs and states."""
    return value.node.label if value.node is not None else ""


def called(plan: MemoryPlan, value: Value) -> str:
    """A value's name, with the scope and op that it comes from: ``%27 (stage1/unit0/add)``."""
    name, place = plan.graph.names[value], origin(value)
    return f"{name} ({place})" if place else name


def node_at(plan: MemoryPlan, step: int) -> str:
    """A step with its node: ``node 16 (stage1/unit0/add)``."""
    return f"node {step} ({node_label(plan, step)})"


def node_of(plan: MemoryPlan, node: Node) -> str:
    """A node with its step, as `node_at` has it."""
    return node_at(plan, plan.graph.position[node])


def node_label(plan: MemoryPlan, step: int) -> str:
    """Scope and op of a step's node; a graph without nodes has one step, its start."""
    return plan.graph.nodes[step].label if plan.graph.nodes else "start"


def listed(parts: list[str], most: int) -> str:
    """Parts in a row; of more than `most`, the first ones and how many more."""
    more = f" and {len(parts) - most} more" if len(parts) > most else ""
    return ", ".join(parts[:most]) + more


def count(number: int, what: str) -> str:
    """A number of things: ``1 value``, ``2 values``."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"
