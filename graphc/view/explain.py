"""Why a value is kept or computed again, who holds it, and what makes the peak: in sentences."""

from __future__ import annotations

from collections.abc import Iterator

from graphc.ir.graph import Input, Node, State, Value
from graphc.ir.plan import MemoryPlan
from graphc.ir.types import format_bytes
from graphc.passes.cost import CostModel
from graphc.view.page_model import lifetime_end, origin

READERS = 6
"""Readers that are listed; of more, the first ones and the last."""

KEPT = 40
"""Values of the forward pass that are listed."""

BEHIND = ("gradient", "mirror")
"""Phases of nodes for which the forward pass keeps values."""

AT_PEAK = 10
"""Values that are listed at the peak."""


def explain_value(plan: MemoryPlan, value: Value) -> list[str]:
    """Sentences: what it is, why it is there that long, who reads it, and where its bytes lie."""
    return [
        _what(plan, value),
        *_why_kept(plan, value),
        *_readers(plan, value),
        *_place(plan, value),
    ]


def _name(plan: MemoryPlan, value: Value) -> str:
    label = origin(value)
    return f"{plan.graph.names[value]} ({label})" if label else plan.graph.names[value]


def _at(plan: MemoryPlan, node: Node) -> str:
    return f"node {plan.graph.position[node]} ({node.label})"


def _what(plan: MemoryPlan, value: Value) -> str:
    name, size = plan.graph.names[value], format_bytes(value.type.bytes)
    if isinstance(value, State):
        made = f"a {value.role}, which lives across steps"
    elif isinstance(value, Input):
        made = "an input, fed anew at every step"
    else:
        made = f"computed by {_at(plan, value.producer)} in the {_pass_of(value.producer)}"
    return f"{name} is {value.type}, {size}, {made}."


def _pass_of(node: Node) -> str:
    return {"forward": "forward pass", "gradient": "gradient pass", "update": "update",
            "mirror": "recomputation"}[node.phase]  # fmt: skip


def _why_kept(plan: MemoryPlan, value: Value) -> Iterator[str]:
    graph = plan.graph
    if isinstance(value, State):
        yield "A state has its bytes in every step and between steps; nothing else may have them."
        return
    if value.node is not None and value.node.op.has_effect:
        yield "It is a state's new content, and lies where the state lies, for the next step."
        return
    names = [name for name, output in graph.outputs.items() if output is value]
    if names:
        yield f"It is kept to the end of the step: it is the output {names[0]!r}."
    if value in graph.kept:
        yield "It is never dropped: the program says `graphc.keep`."
    copies = _copies_of(plan, value)
    if value.node is not None and value.node.copy_of is not None:
        yield from _why_computed_again(plan, value.node.copy_of, value)
    elif copies:
        first = copies[0].producer
        yield (
            f"It is not kept but computed again, {_times(len(copies))}, first by "
            f"{_at(plan, first)}: what reads it from there on reads the copy."
        )
    if names:
        return
    readers = [graph.nodes[step] for step in graph.uses[value]]
    if not readers:
        yield "No node reads it, so its bytes are free after the node that writes it."
        return
    last = readers[-1]
    backward = [graph.nodes[step] for step in _steps_behind(plan, value)]
    is_forward = value.node is None or value.node.phase == "forward"
    if is_forward and backward:
        yield (
            f"It is kept from the forward pass because {len(backward)} "
            f"{'node' if len(backward) == 1 else 'nodes'} of the gradient and recomputation "
            f"{'reads' if len(backward) == 1 else 'read'} it: the first is "
            f"{_at(plan, backward[0])}."
        )
    elif is_forward and not copies:
        yield "No gradient reads it, so it need not be kept for one."
    yield f"It lives until {_at(plan, last)}, its last reader{_operand(last, value)}."


def _operand(node: Node, value: Value) -> str:
    """What an op calls the operand, such as ``, as its operand y``."""
    for name, operand in node.named_inputs().items():
        if operand is value or (isinstance(operand, tuple) and value in operand):
            return f", as its operand {name}"
    return ""


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _copies_of(plan: MemoryPlan, value: Value) -> list[Value]:
    """Recomputed copies, in the order in which they run."""
    return [
        node.outputs[value.index]
        for node in plan.graph.nodes
        if node.copy_of is not None and node.copy_of is value.node
    ]


def _why_computed_again(plan: MemoryPlan, copied: Node, value: Value) -> Iterator[str]:
    graph, original = plan.graph, copied.outputs[value.index]
    # A graph may hold a copy without what it copies, where nothing reads that.
    if copied not in graph.position:
        yield "It is computed again; the graph no longer holds the first one."
        return
    begin = graph.position[value.producer]
    uses = graph.uses[original]
    end = uses[-1] if uses else graph.position[copied]
    seconds = CostModel(plan.device).seconds(value.producer)
    yield (
        f"It is a copy of {_name(plan, original)}, computed again so that those "
        f"{format_bytes(original.type.bytes)} need not be kept from node {end} to node {begin}: "
        f"recomputation is {plan.recompute}. This node takes {seconds:.2g} seconds by the cost "
        "model."
    )


def _readers(plan: MemoryPlan, value: Value) -> Iterator[str]:
    nodes = [plan.graph.nodes[step] for step in plan.graph.uses[value]]
    if not nodes:
        return
    listed = [_at(plan, node) for node in nodes]
    if len(listed) > READERS:
        left_out = len(listed) - READERS
        listed = [*listed[: READERS - 1], f"{left_out} more", listed[-1]]
    yield f"It is read by {', '.join(listed)}."


def _place(plan: MemoryPlan, value: Value) -> Iterator[str]:
    placement = plan.placements[value]
    buffer = plan.buffers[placement.buffer]
    over = "" if placement.over is None else _name(plan, placement.over)
    how = {
        "new": "in a place that nothing used before",
        "reuse": "in a place whose earlier tenants are dead",
        "over": f"over {over}, which its node reads for the last time",
        "view": f"as a view of {over}, without bytes of its own",
        "part": f"as a part of {over}, computed straight into its place",
        "state": f"where the state {over} lies" if over else "in the region of states",
    }[placement.how]
    begin = plan.address(value)
    yield (
        f"Its bytes begin at {begin:#x} of the arena, {how}. They are in a buffer of "
        f"{format_bytes(buffer.bytes)} that lives from node {buffer.lifetime.first} to node "
        f"{lifetime_end(plan, buffer) - 1}."
    )
    others = [other for other in plan.residents[buffer.index] if other is not value]
    if others:
        listed = ", ".join(_name(plan, other) for other in others[:READERS])
        more = f" and {len(others) - READERS} more" if len(others) > READERS else ""
        yield f"The buffer also holds {listed}{more}."


def explain_kept(plan: MemoryPlan) -> list[str]:
    """Sentences: what the forward pass keeps for the gradient and for recomputation, largest first.

    Values that share their bytes, such as a view and what it views, count once.
    """
    kept: dict[int, tuple[Value, list[int]]] = {}
    for value in plan.graph.values:
        steps = _steps_behind(plan, value)
        if steps:
            kept.setdefault(plan.address(value), (value, steps))
    found = sorted(kept.values(), key=lambda entry: -entry[0].type.bytes)
    total = format_bytes(sum(value.type.bytes for value, _ in found))
    told = [
        f"The forward pass keeps {len(found)} values, {total} together, for the gradient and "
        f"recomputation; recomputation is {plan.recompute}."
    ]
    for value, steps in found[:KEPT]:
        first, last = (_at(plan, plan.graph.nodes[step]) for step in (steps[0], steps[-1]))
        readers = f"for {first}" if first == last else f"for {first} to {last}"
        told.append(f"  {format_bytes(value.type.bytes)}, {_name(plan, value)}: {readers}")
    rest = [value.type.bytes for value, _ in found[KEPT:]]
    return told + ([f"  {format_bytes(sum(rest))} in {len(rest)} smaller values"] if rest else [])


def _steps_behind(plan: MemoryPlan, value: Value) -> list[int]:
    """Steps of the gradient and of recomputation that read a value of the forward pass."""
    if isinstance(value, State) or (value.node is not None and value.node.phase != "forward"):
        return []
    nodes = plan.graph.nodes
    return [step for step in plan.graph.uses[value] if nodes[step].phase in BEHIND]


def explain_peak(plan: MemoryPlan) -> list[str]:
    """Sentences: where the peak is, its kinds, its largest values and who holds them."""
    step = plan.peak_step
    label = plan.graph.nodes[step].label if plan.graph.nodes else "start"
    alive = plan.live_at(step)
    told = [
        f"Most bytes are live at node {step} of {len(plan.graph.nodes)} ({label}): "
        f"{format_bytes(plan.live_bytes)}. The arena is {format_bytes(plan.arena_bytes)}."
    ]
    totals: dict[str, int] = {}
    for buffer in alive:
        totals[buffer.kind] = totals.get(buffer.kind, 0) + buffer.bytes
    by_size = sorted(totals.items(), key=lambda entry: (-entry[1], entry[0]))
    shares = ", ".join(
        f"{kind} {format_bytes(size)} ({size / max(1, plan.live_bytes):.0%})"
        for kind, size in by_size
    )
    told.append(f"They are {shares}." if shares else "Nothing is live there.")
    told += [f"  {line}" for line in _largest(plan, step)]
    told += _by_op(plan, step)
    return told


def _largest(plan: MemoryPlan, step: int) -> Iterator[str]:
    """What is live at a step but the states, which no plan can drop."""
    alive = [buffer for buffer in plan.live_at(step) if buffer.kind != "state"]
    for buffer in alive[:AT_PEAK]:
        value = resident_at(plan, buffer.index, step)
        if value is None:
            yield f"{format_bytes(buffer.bytes)}, workspace of the node"
            continue
        uses = plan.graph.uses[value]
        if uses and uses[-1] > step:
            held = f"held for {_at(plan, plan.graph.nodes[uses[-1]])}"
        elif uses and uses[-1] == step:
            held = "read by the node itself"
        else:
            held = f"its buffer is held until node {lifetime_end(plan, buffer) - 1}"
        yield f"{format_bytes(buffer.bytes)}, {buffer.kind}, {_name(plan, value)}: {held}"
    if len(alive) > AT_PEAK:
        rest = sum(buffer.bytes for buffer in alive[AT_PEAK:])
        yield f"{format_bytes(rest)} in {len(alive) - AT_PEAK} smaller buffers"


def resident_at(plan: MemoryPlan, buffer: int, step: int) -> Value | None:
    """The value written last into a buffer by a step; None for a workspace."""
    found, latest = None, -2
    for value in plan.residents.get(buffer, []):
        born = -1 if value.node is None else plan.graph.position[value.node]
        if born <= step and born >= latest and plan.placements[value].how != "view":
            found, latest = value, born
    return found


def _by_op(plan: MemoryPlan, step: int) -> list[str]:
    """Forward values at the peak by the op that computes them, and what it costs to do so again."""
    costs = CostModel(plan.device)
    totals: dict[str, tuple[int, float]] = {}
    for buffer in plan.live_at(step):
        value = resident_at(plan, buffer.index, step)
        if value is not None and value.node is not None and value.node.phase == "forward":
            size, seconds = totals.get(value.node.op.name, (0, 0.0))
            again = costs.seconds(value.node)
            totals[value.node.op.name] = (size + buffer.bytes, seconds + again)
    if not totals:
        return []
    step_seconds = sum(costs.seconds(node) for node in plan.graph.nodes) or 1.0
    ordered = sorted(totals.items(), key=lambda entry: (-entry[1][0], entry[0]))[:READERS]
    lines = [
        f"  {format_bytes(size)} of {op}: {seconds / step_seconds:.1%} of the step's seconds"
        for op, (size, seconds) in ordered
    ]
    return ["Values of the forward pass there by op, and what they cost to compute again:", *lines]
