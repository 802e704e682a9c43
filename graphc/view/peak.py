"""Values saved by the forward pass and values live at the peak, as data and as sentences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from graphc.byte_sizes import format_bytes
from graphc.ir.graph import Node, State, Value
from graphc.ir.host_copies import copied_values
from graphc.plans.cost_model import CostModel
from graphc.plans.memory_plan import Buffer, Kind, MemoryPlan
from graphc.plans.names import (
    born,
    buffer_name,
    called,
    count,
    held_at,
    kind_at,
    node_at,
    node_label,
)
from graphc.view.aliases import BEHIND, Aliases, is_forward
from graphc.view.page_model import live_by_kind

KEPT = 40
"""Maximum number of saved values listed."""

AT_PEAK = 10
"""Maximum number of values listed at the peak."""

OPS = 6
"""Maximum number of ops listed at the peak."""


@dataclass(frozen=True)
class KeptValue:
    """A value that the forward pass saves, and the first and last later node that use it."""

    name: str
    bytes: int
    first_node: int
    last_node: int


@dataclass(frozen=True)
class Kept:
    """The values that the forward pass saves, largest first, and their peak live bytes."""

    bytes: int
    most_bytes_at_once: int
    values: list[KeptValue]


@dataclass(frozen=True)
class LiveBuffer:
    """A buffer live at the peak; `held` gives the reason, and is None for a workspace."""

    name: str
    kind: Kind
    bytes: int
    held: str | None


@dataclass(frozen=True)
class OpAtPeak:
    """The live bytes at the peak that an op produced, and the cost of recomputing them.

    The cost is a fraction of the seconds of a step.
    """

    op: str
    bytes: int
    seconds_fraction: float


@dataclass(frozen=True)
class Peak:
    """The node at the peak of live bytes, with the bytes by kind, buffer and op.

    `buffers` has the live buffers, largest first; states are omitted, since no plan can evict them.
    `ops` has the results of the forward pass, by op.
    """

    node: int
    label: str
    live_bytes: int
    arena_bytes: int
    bytes_by_kind: dict[Kind, int]
    buffers: list[LiveBuffer]
    ops: list[OpAtPeak]


def kept_of(plan: MemoryPlan) -> Kept:
    """Return the values that the forward pass saves for the gradient and for recomputation.

    Views of a value, and its parts that are computed in place, share its bytes. They count once,
    as that value.
    """
    aliases, nodes = Aliases(plan), plan.graph.nodes
    kept: dict[Value, list[int]] = {}
    for value in filter(is_forward, plan.graph.values):
        steps = [step for step in plan.graph.uses[value] if nodes[step].phase in BEHIND]
        root = aliases.root(value)
        if steps and not isinstance(root, State) and not value.on_host:
            kept.setdefault(root, []).extend(steps)
    values = [
        KeptValue(called(plan, value), value.type.bytes, min(steps), max(steps))
        for value, steps in kept.items()
    ]
    values.sort(key=lambda value: -value.bytes)
    return Kept(sum(value.bytes for value in values), _most_at_once(plan, kept), values)


def _most_at_once(plan: MemoryPlan, kept: Mapping[Value, Sequence[int]]) -> int:
    """Return the peak live bytes of saved values.

    With several micro-batches, it is below the sum of all sizes, since they are not live together.
    """
    change = [0] * (len(plan.live_profile) + 1)
    for value, steps in kept.items():
        change[max(0, born(plan, value))] += value.type.bytes
        change[max(steps) + 1] -= value.type.bytes
    return max(accumulate(change))


def explain_kept(plan: MemoryPlan) -> list[str]:
    """Return sentences about the saved values and the nodes that use them, largest first."""
    kept = kept_of(plan)
    total, most = format_bytes(kept.bytes), format_bytes(kept.most_bytes_at_once)
    is_whole = kept.most_bytes_at_once == kept.bytes
    together = f"{total} in total" if is_whole else f"{total}, at most {most} at a time"
    told = [
        f"The forward pass saves {count(len(kept.values), 'value')}, {together}, for the "
        f"gradient and recomputation (recompute={plan.recompute})."
    ]
    copied = copied_values(plan.graph)
    if copied:
        size = format_bytes(sum(value.type.bytes for value in copied))
        told.append(
            f"{count(len(copied), 'value')} of {size} are copied to the host. If fetched for "
            "later nodes, they are listed as the results of arrivals."
        )
    for value in kept.values[:KEPT]:
        first, last = (node_at(plan, step) for step in (value.first_node, value.last_node))
        readers = f"for {first}" if first == last else f"for {first} to {last}"
        told.append(f"  {format_bytes(value.bytes)}, {value.name}: {readers}")
    rest = [value.bytes for value in kept.values[KEPT:]]
    if rest:
        told.append(f"  {format_bytes(sum(rest))} in {count(len(rest), 'smaller value')}")
    return told


def peak_of(plan: MemoryPlan, costs: CostModel | None = None) -> Peak:
    """Return the peak of a plan and the values live there.

    `costs` gives the cost of recomputing values, by default the roofline of the plan's device.
    """
    step = plan.peak_step
    totals = {kind: size for kind, size in live_by_kind(plan)[step].items() if size}
    return Peak(
        node=step,
        label=node_label(plan, step),
        live_bytes=plan.live_bytes,
        arena_bytes=plan.arena_bytes,
        bytes_by_kind=dict(sorted(totals.items(), key=lambda entry: -entry[1])),
        buffers=[_live(plan, b, step) for b in plan.live_at(step) if b.kind != "state"],
        ops=_by_op(plan, step, costs or CostModel.of(plan)),
    )


def _live(plan: MemoryPlan, buffer: Buffer, step: int) -> LiveBuffer:
    value = held_at(plan, buffer, step)
    held = None if value is None else _held(plan, buffer.index, step, value)
    name, kind = buffer_name(plan, buffer, step), kind_at(plan, buffer, step)
    return LiveBuffer(name, kind, buffer.bytes, held)


def explain_peak(plan: MemoryPlan, costs: CostModel | None = None) -> list[str]:
    """Return sentences about the peak: its node, kinds, largest values and their last uses.

    `costs` is as for `peak_of`.
    """
    peak = peak_of(plan, costs)
    shares = ", ".join(
        f"{kind} {format_bytes(size)} ({size / peak.live_bytes:.0%})"
        for kind, size in peak.bytes_by_kind.items()
    )
    return [
        f"The peak is at {node_at(plan, peak.node)} of {len(plan.graph.nodes)}: "
        f"{format_bytes(peak.live_bytes)} are live. The arena is {format_bytes(peak.arena_bytes)}.",
        f"They are {shares}." if shares else "Nothing is live there.",
        *(f"  {line}" for line in _largest(peak)),
        *_ops_told(peak),
    ]


def _largest(peak: Peak) -> Iterator[str]:
    for buffer in peak.buffers[:AT_PEAK]:
        held = "" if buffer.held is None else f": {buffer.held}"
        yield f"{format_bytes(buffer.bytes)}, {buffer.kind}, {buffer.name}{held}"
    rest = [buffer.bytes for buffer in peak.buffers[AT_PEAK:]]
    if rest:
        yield f"{format_bytes(sum(rest))} in {count(len(rest), 'smaller buffer')}"


def _ops_told(peak: Peak) -> list[str]:
    lines = [
        f"  {format_bytes(each.bytes)} of {each.op}: {each.seconds_fraction:.1%} of the step's "
        "seconds"
        for each in peak.ops[:OPS]
    ]
    first = "Values of the forward pass at the peak, by op, with the cost of recomputing them:"
    return [first, *lines] if lines else []


def _held(plan: MemoryPlan, buffer: int, step: int, value: Value) -> str:
    """Return the reason why a buffer is live at a step: the last use of its current contents.

    Values written into the buffer later do not count, although they extend its live range.
    """
    written = [v for v in plan.residents[buffer] if born(plan, v) <= step]
    outputs = [name for name, v in plan.graph.outputs.items() if v in written]
    if outputs:
        return f"live until the end, as the output {outputs[0]!r}"
    reads = [(plan.graph.uses[v][-1], v) for v in written if plan.graph.uses[v]]
    last, holder = max(reads, key=lambda read: read[0], default=(-1, value))
    if last < step:
        end = plan.lifetime_end(plan.buffers[buffer]) - 1
        return f"its buffer is live until {node_at(plan, end)}"
    if last == step:
        return "read by the node itself"
    through = "" if holder is value else f", which reads {called(plan, holder)} there"
    return f"live until {node_at(plan, last)}{through}"


def _makers(plan: MemoryPlan, buffer: Buffer, step: int) -> Iterator[tuple[Node, int]]:
    """Yield (node, bytes) for the producers of a buffer's content.

    They are the producers of the parts of a concatenation, or the node that wrote the buffer last.
    """
    places, residents = plan.placements, plan.residents.get(buffer.index, [])
    wholes = {places[value].over for value in residents if places[value].how == "part"}
    parts = [
        value
        for value in residents
        if places[value].how == "part" and value not in wholes and born(plan, value) <= step
    ]
    if parts:
        yield from ((value.producer, value.type.bytes) for value in parts)
        return
    value = held_at(plan, buffer, step)
    if value is not None and value.node is not None:
        yield value.node, buffer.bytes


def _by_op(plan: MemoryPlan, step: int, costs: CostModel) -> list[OpAtPeak]:
    """Group forward values at the peak by op, with the cost of recomputing them."""
    sizes: dict[Node, int] = {}
    for buffer in plan.live_at(step):
        for node, size in _makers(plan, buffer, step):
            if node.phase == "forward":
                sizes[node] = sizes.get(node, 0) + size
    totals: dict[str, tuple[int, float]] = {}
    for node, size in sizes.items():
        others, seconds = totals.get(node.op.name, (0, 0.0))
        totals[node.op.name] = (others + size, seconds + costs.seconds(node))
    step_seconds = sum(costs.seconds(node) for node in plan.graph.nodes) or 1.0
    ordered = sorted(totals.items(), key=lambda entry: (-entry[1][0], entry[0]))
    return [OpAtPeak(op, size, seconds / step_seconds) for op, (size, seconds) in ordered]
