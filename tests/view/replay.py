"""What every buffer holds at every node, as one node after another writes its results."""

from graphc.ir.types import align
from graphc.plans.kinds import kind_of


def replayed(plan):
    """(step, number of a buffer) → what it is called, and its kind."""
    names, nodes = plan.graph.names, plan.graph.nodes
    held, found = {}, {}
    for value, place in plan.placements.items():
        if value.node is None:
            held[place.buffer] = names[value], kind_of(value)
    for node, buffer in plan.workspaces.items():
        held[buffer.index] = f"workspace of {node.label}", "workspace"
    for slot in plan.slots:
        value = slot.value
        origin = "" if value.node is None else f" ({value.node.label})"
        held[slot.buffer.index] = f"slot of {names[value]}{origin}", "slot"
    for step, node in enumerate(nodes):
        for value in node.outputs:
            place = plan.placements[value]
            if place.how == "view" or plan.buffers[place.buffer].kind == "state":
                continue
            before = held.get(place.buffer, ("", plan.buffers[place.buffer].kind))
            kind = before[1] if node.phase == "update" else kind_of(value)
            held[place.buffer] = f"{names[value]} ({node.label})", kind
        for buffer in plan.live_at(step):
            found[step, buffer.index] = held[buffer.index]
    return found


def live_of_kind(plan, kind, step, found=None):
    """The live bytes of a kind at a node, rounded as a plan does."""
    found = found or replayed(plan)
    alive = [b.bytes for b in plan.live_at(step) if found[step, b.index][1] == kind]
    return sum(align(size, plan.alignment) for size in alive)
