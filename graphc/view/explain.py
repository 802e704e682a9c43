"""Explanations of a value in sentences: its live range, uses, recomputation and address."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from graphc.byte_sizes import format_bytes
from graphc.ir.graph import Input, Node, State, Value
from graphc.ir.host_copies import fetched_state
from graphc.plans.cost_model import CostModel
from graphc.plans.memory_plan import MemoryPlan
from graphc.plans.names import born, called, count, listed, node_at, node_of
from graphc.view.aliases import BEHIND, Aliases, Reader, is_forward
from graphc.view.offloading import Offloading

READERS = 6
"""Maximum number of uses listed. If there are more, the first ones and the last one are."""


def explain_value(plan: MemoryPlan, value: Value, costs: CostModel | None = None) -> list[str]:
    """Return sentences about a value: its type, live range, uses and address.

    `costs` gives the cost of recomputing it, by default the roofline of the plan's device.
    """
    aliases, costs = Aliases(plan), costs or CostModel.of(plan)
    offloading = Offloading(plan, aliases, costs)
    return [
        _what(plan, value),
        *_why_kept(plan, value, aliases, costs, is_copied=bool(offloading.of(value))),
        *offloading.explain(value),
        *_readers(plan, value),
        *_place(plan, value),
    ]


def value_facts(plan: MemoryPlan, value: Value, costs: CostModel | None = None) -> dict[str, Any]:
    """Return the same facts as `explain_value` as numbers and names, for JSON.

    `costs` is as for `explain_value`. A node number of -1 means that there is no such node.
    """
    placement, names = plan.placements[value], plan.graph.names
    buffer = plan.buffers[placement.buffer]
    return {
        "name": names[value],
        "called": called(plan, value),
        "type": str(value.type),
        "bytes": value.type.bytes,
        "node": born(plan, value),
        "phase": value.node.phase if value.node is not None else None,
        "readers": list(plan.graph.uses[value]),
        "copies": [names[copy] for copy in _copies_of(plan, value)],
        "host_copies": Offloading(plan, Aliases(plan), costs or CostModel.of(plan)).facts(value),
        "how": placement.how,
        "over": None if placement.over is None else names[placement.over],
        "address": plan.address(value),
        "buffer": {
            "bytes": buffer.bytes,
            "first_node": buffer.lifetime.first,
            "last_node": plan.lifetime_end(buffer) - 1,
            "values": [names[other] for other in plan.residents[buffer.index]],
        },
    }


def _what(plan: MemoryPlan, value: Value) -> str:
    name, size = plan.graph.names[value], format_bytes(value.type.bytes)
    if isinstance(value, State):
        life = "never changes" if value.role == "constant" else "persists across steps"
        made = f"a {value.role}, which {life}"
    elif isinstance(value, Input):
        made = "an input, fed at every step"
    elif (copy := value.producer.host_copy) is not None:
        made = f"copied to the {copy.op.copies_to} by {node_of(plan, value.producer)}"
    else:
        made = f"computed by {node_of(plan, value.producer)} in the {_pass_of(value.producer)}"
    return f"{name} is {value.type}, {size}, {made}."


def _pass_of(node: Node) -> str:
    return {"forward": "forward pass", "gradient": "gradient pass", "update": "update",
            "mirror": "recomputation"}[node.phase]  # fmt: skip


def _why_kept(
    plan: MemoryPlan, value: Value, aliases: Aliases, costs: CostModel, is_copied: bool
) -> Iterator[str]:
    """Yield sentences on why a value is saved or recomputed, and until when it is live.

    `is_copied` is True if it is copied to the host or back, which `Offloading` explains.
    """
    graph = plan.graph
    if isinstance(value, State):
        yield "A state owns its bytes in and between all steps; they are never reused."
        return
    if (fetched := fetched_state(value)) is not None:
        yield f"It is the copy of the state {graph.names[fetched]} on the host."
    if value.node is not None and value.node.op.has_effect:
        over = value.node.replaced.get(value)
        updated = None if over is None else fetched_state(over)
        if updated is not None:
            state = graph.names[updated]
            yield f"It is the new content of the state {state}, until it is copied to the host."
        else:
            yield "It is the new content of a state, at the address of that state."
        return
    if value in graph.kept:
        yield "It is never evicted, because the program marks it with `graphc.keep`."
    readers = aliases.readers(value)
    yield from _copies(plan, value, aliases, costs)
    backward = [reader for reader in readers if graph.nodes[reader.step].phase in BEHIND]
    if is_forward(value) and backward and not is_copied:
        what = "it" if all(reader.value is value for reader in backward) else "its bytes"
        yield (
            f"It is saved for the backward pass because {count(len(backward), 'node')} of the "
            f"gradient and recomputation {'reads' if len(backward) == 1 else 'read'} {what}; the "
            f"first is {node_at(plan, backward[0].step)}{_through(plan, value, backward[0])}."
        )
    elif is_forward(value) and not _copies_of(plan, value) and not is_copied:
        yield "No gradient reads it, so it is not saved."
    outputs = aliases.output_names(value)
    if outputs:
        yield f"It is live until the end of the step, because it is the output {outputs[0]!r}."
    elif readers:
        last = readers[-1]
        how = _through(plan, value, last) or _operand(graph.nodes[last.step], value)
        yield f"It is live until its last use by {node_at(plan, last.step)}{how}."
    else:
        yield "No node reads it, so its bytes are free after the node that writes it."


def _through(plan: MemoryPlan, value: Value, reader: Reader) -> str:
    """Name the alias through which a node reads the value; empty if it reads the value itself."""
    if reader.value is value:
        return ""
    other = called(plan, reader.value)
    is_whole = reader.value.type.bytes > value.type.bytes
    return f", through {other}, which contains it" if is_whole else f", through the view {other}"


def _operand(node: Node, value: Value) -> str:
    """Return a phrase with the name of an operand in its op, such as ``, as its operand y``."""
    for name, operand in node.named_inputs().items():
        if operand is value or (isinstance(operand, tuple) and value in operand):
            return f", as its operand {name}"
    return ""


def _copies_of(plan: MemoryPlan, value: Value) -> list[Value]:
    """Return the recomputed copies of a value, in execution order."""
    return [
        node.outputs[value.index]
        for node in plan.graph.nodes
        if node.copy_of is not None and node.copy_of is value.node
    ]


def _copies(plan: MemoryPlan, value: Value, aliases: Aliases, costs: CostModel) -> Iterator[str]:
    """Yield sentences on recomputation: of the value, or that it is a recomputed copy.

    They name the uses for which it is recomputed.
    """
    node, position = value.node, plan.graph.position
    if node is not None and node.copy_of is not None:
        yield from _why_computed_again(plan, node.copy_of, value, aliases, costs)
        return
    copies = _copies_of(plan, value)
    if not copies:
        return
    first, readers = copies[0].producer, aliases.readers(value)
    times = "once" if len(copies) == 1 else f"{len(copies)} times"
    if aliases.output_names(value):
        yield (
            f"Its node is recomputed {times}, first by {node_of(plan, first)}, but the value is "
            "also kept."
        )
    elif not readers or readers[-1].step < position[first]:
        yield (
            f"It is not kept but recomputed {times}, first by {node_of(plan, first)}; later nodes "
            "read the copy."
        )
    else:
        yield (
            f"Its node is recomputed {times}, first by {node_of(plan, first)}, but later nodes "
            "still read the value itself."
        )


def _why_computed_again(
    plan: MemoryPlan, copied: Node, value: Value, aliases: Aliases, costs: CostModel
) -> Iterator[str]:
    position, original = plan.graph.position, copied.outputs[value.index]
    # If nothing reads the original, a graph may contain only the copy.
    if copied not in position:
        yield "It is recomputed; the graph no longer contains the original."
        return
    begin = position[value.producer]
    earlier = [v for v in (original, *_copies_of(plan, original)) if position[v.producer] < begin]
    # Copies execute in list order. The original may execute after all of them.
    before = earlier[-1] if earlier else original
    reads = aliases.readers(before)
    end = reads[-1].step if reads else position[before.producer]
    name = f"It is a copy of {called(plan, original)}"
    seconds = f"Its node takes {costs.seconds(value.producer):.2g} seconds by the cost model."
    outputs = aliases.output_names(original)
    if outputs:
        yield f"{name}, which is also kept, because it is the output {outputs[0]!r}. {seconds}"
    elif not aliases.readers(value):
        yield f"{name} that no node reads; its node is recomputed for its other outputs. {seconds}"
    elif end < begin:
        source = "" if before is original else f", as {called(plan, before)},"
        yield (
            f"{name}, recomputed so that {format_bytes(original.type.bytes)} need not be "
            f"kept{source} from node {end} to node {begin} (recompute={plan.recompute}). {seconds}"
        )
    else:
        yield f"{name}; node {end} still reads {called(plan, before)} after it. {seconds}"


def _readers(plan: MemoryPlan, value: Value) -> Iterator[str]:
    steps = plan.graph.uses[value]
    if not steps:
        return
    nodes = [node_at(plan, step) for step in steps]
    if len(nodes) > READERS:
        nodes = [*nodes[: READERS - 1], f"{len(nodes) - READERS} more", nodes[-1]]
    yield f"It is read by {', '.join(nodes)}."


def _place(plan: MemoryPlan, value: Value) -> Iterator[str]:
    placement = plan.placements[value]
    buffer = plan.buffers[placement.buffer]
    over = "" if placement.over is None else called(plan, placement.over)
    how = {
        "new": "in bytes that no value used before",
        "reuse": "in bytes whose earlier values are dead",
        "over": f"in place of {over}, whose last use is its node",
        "view": f"as a view of {over}, without bytes of its own",
        "part": f"as a part of {over}, computed in place",
        "state": f"at the address of the state {over}" if over else "in the region of states",
    }[placement.how]
    begin, where = plan.address(value), "the arena"
    if value.on_host:
        begin, where = begin - plan.host_start, "host memory"
    yield (
        f"Its bytes begin at {begin:#x} of {where}, {how}. Its buffer of "
        f"{format_bytes(buffer.bytes)} is live from node {buffer.lifetime.first} to node "
        f"{plan.lifetime_end(buffer) - 1}."
    )
    others = [called(plan, v) for v in plan.residents[buffer.index] if v is not value]
    if others:
        yield f"The buffer also contains {listed(others, READERS)}."
