"""Live bytes at a node by scope, such as layers and their sublayers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from graphc.byte_sizes import format_bytes
from graphc.ir.graph import State, Value
from graphc.plans.memory_plan import Buffer, MemoryPlan
from graphc.plans.names import count, held_at, node_at
from graphc.view.page_model import aligned_bytes

LEVELS = 2
"""Maximum nesting level of scopes that are listed."""

LEAST = 0.01
"""Minimum fraction of the live bytes for which a scope is listed."""


@dataclass
class Scope:
    """The live bytes of a scope, including its nested scopes `inner`.

    `own_bytes` counts only values produced directly in the scope.
    """

    name: str
    bytes: int = 0
    own_bytes: int = 0
    inner: list[Scope] = field(default_factory=list)


def scopes_at(plan: MemoryPlan, step: int) -> Scope:
    """Return the live bytes at a node by scope, as a tree whose root has no name.

    Nested scopes are ordered by bytes, largest first.
    """
    root = Scope("")
    inside: dict[tuple[str, ...], Scope] = {(): root}
    updated = _updated(plan)
    for buffer in plan.live_at(step):
        size = aligned_bytes(plan, buffer)
        parts = tuple(filter(None, _scope(plan, buffer, step, updated).split("/")))
        root.bytes += size
        for depth in range(1, len(parts) + 1):
            path = parts[:depth]
            if path not in inside:
                inside[path] = Scope(path[-1])
                inside[path[:-1]].inner.append(inside[path])
            inside[path].bytes += size
        inside[parts].own_bytes += size
    for scope in inside.values():
        scope.inner.sort(key=lambda each: (-each.bytes, each.name))
    return root


def _updated(plan: MemoryPlan) -> dict[Value, str]:
    """Map states to the scope of the node that updates them.

    So optimizer moments count for the layer of their parameter.
    """
    return {
        place.over: value.node.scope
        for value, place in plan.placements.items()
        if place.how == "state" and place.over is not None and value.node is not None
    }


def _scope(plan: MemoryPlan, buffer: Buffer, step: int, updated: dict[Value, str]) -> str:
    if buffer.kind == "slot":
        return ""
    value = held_at(plan, buffer, step)
    if value is None:
        return plan.graph.nodes[buffer.lifetime.first].scope
    if isinstance(value, State):
        return updated.get(value, value.name.rpartition("/")[0])
    return value.node.scope if value.node is not None else ""


def explain_scopes(plan: MemoryPlan) -> list[str]:
    """Return lines with the live bytes at the peak by scope; nested scopes are indented."""
    step = plan.peak_step
    root = scopes_at(plan, step)
    total = format_bytes(root.bytes)
    return [
        f"Bytes by scope, of the {total} live at the peak, {node_at(plan, step)}:",
        *_lines(root, root.bytes, 1),
    ]


def _lines(scope: Scope, total: int, level: int) -> Iterator[str]:
    """Yield a line for each scope that is large enough.

    Lines of the first level sum to `total`, with lines for smaller scopes and for bytes without a
    scope.
    """
    shown = [each for each in scope.inner if each.bytes >= LEAST * total]
    indent = "  " * level
    for each in shown:
        yield f"{indent}{_part(each.bytes, total)}  {each.name}"
        if level < LEVELS:
            yield from _lines(each, total, level + 1)
    if level > 1:
        return
    rest = scope.bytes - scope.own_bytes - sum(each.bytes for each in shown)
    if rest:
        smaller = count(len(scope.inner) - len(shown), "smaller scope")
        yield f"{indent}{_part(rest, total)}  in {smaller}"
    if scope.own_bytes:
        yield f"{indent}{_part(scope.own_bytes, total)}  of no scope"


def _part(size: int, total: int) -> str:
    return f"{format_bytes(size)} ({size / max(1, total):.0%})"
