"""Kinds of values in a plan: state, input, feature map, gradient and others."""

from __future__ import annotations

from graphc.ir.graph import Input, State, Value
from graphc.ir.host_copies import original
from graphc.plans.memory_plan import Kind


def kind_of(value: Value) -> Kind:
    """Return the kind of bytes that a value has, such as state, gradient or feature map."""
    if isinstance(value, State):
        return "host" if value.on_host else "state"
    if isinstance(value, Input) or value.node is None:
        return "input"
    copy = value.node.host_copy
    if copy is not None and copy.op.copies_to == "device" and isinstance(copy.inputs[0], State):
        return "fetched"
    if copy is not None:
        return "host" if copy.op.copies_to == "host" else _kind_of_fetched(value)
    match value.node.phase:
        case "mirror":
            return "mirror"
        case "gradient":
            return "gradient"
        case "update" if _is_gathered(value):
            return "gathered"
        case _:
            return "feature map"


def _kind_of_fetched(value: Value) -> Kind:
    """Return the kind of a value that a copy returns to the device: that of its original.

    Originals that are states or inputs count as feature maps, since their copies do not persist.
    """
    found = kind_of(original(value))
    return "feature map" if found in ("state", "input") else found


def _is_gathered(value: Value) -> bool:
    """Return True if a value is gathered from parameters that are sharded over ranks."""
    node = value.node
    while node is not None and (node.op.views or node.op.awaits):
        node = node.inputs[0].node
    return node is not None and node.op.joins
