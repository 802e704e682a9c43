"""The full text form of a memory plan: fixed layout, the same bytes for the same plan."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from graphc.byte_sizes import exact_bytes, format_bytes
from graphc.ir.forms import writes
from graphc.ir.graph import Node
from graphc.plans.copy_model import model_copies
from graphc.plans.float8_layers import describe_float8
from graphc.plans.memory_plan import MemoryPlan
from graphc.plans.names import buffer_name, kind_at, kind_label
from graphc.plans.rank_model import model_rank

WIDTH = 80
"""The line width, except for the list of nodes."""

INDENT, PEAK_INDENT = 22, 30
"""The columns at which a figure in the summary, and a name at the peak, begin."""

LARGEST = 6
"""The maximum number of values listed at the peak."""


@writes(MemoryPlan, "text")
def format_plan(plan: MemoryPlan, nodes: bool = True) -> str:
    """Return the summary, bytes by kind, and the peak with its largest values.

    With `nodes`, the list of all nodes precedes them.
    """
    sections = [_summary(plan), _kinds(plan), *_streams(plan), _peak(plan)]
    if nodes:
        sections.insert(0, _nodes(plan))
    return "\n\n".join("\n".join(lines) for lines in sections) + "\n"


def summary_rows(plan: MemoryPlan) -> list[tuple[str, str]]:
    """Return the (label, figure) rows of the summary."""
    graph = plan.graph
    forward = sum(node.phase == "forward" for node in graph.nodes)
    gap = (plan.arena_bytes - plan.live_bytes) / max(plan.live_bytes, 1)
    rows = [
        ("nodes", f"{len(graph.nodes):,} ({forward:,} forward)"),
        ("arena", exact_bytes(plan.arena_bytes)),
        ("peak live bytes", f"{format_bytes(plan.live_bytes)} (gap {gap:.2%})"),
        ("paper's measure", format_bytes(plan.feature_map_bytes)),
    ]
    if plan.device.kind == "cuda":
        rows.insert(0, ("device", f"{plan.device.name}, a GPU"))
    others = (f"{name} {format_bytes(size)}" for name, size in plan.strategy_bytes.items())
    rows.append(("arena by strategy", f"{', '.join(others)}, in this plan's node order"))
    if plan.settings:
        listed = (v if k == "optimizer" else f"{k}={v}" for k, v in plan.settings.items())
        rows.append(("step", ", ".join(listed)))
    if plan.settings.get("precision") == "fp8":
        rows.append(("8-bit operands", describe_float8(graph)))
    again, proven = plan.recomputation, plan.certificate
    if proven is not None:
        rows.append(("planned for", proven.goal))
        rows.append(("proven", f"no schedule needs less than {format_bytes(proven.bound_bytes)}"))
        rows.append(
            (
                "",
                f"extra time {again.extra_time_fraction:.1%}; lower bound within these bytes "
                f"{proven.extra_time_bound:.1%}",
            )
        )
    exchanges = model_rank(plan)
    if exchanges.exchanges:
        rows.append(
            (
                "collectives",
                f"{exchanges.exchanges}, {format_bytes(exchanges.sent_bytes)} sent, "
                f"{exchanges.exchange_seconds * 1e3:.3f} ms by the cost model, "
                f"{exchanges.hidden:.0%} hidden by other nodes",
            )
        )
    if exchanges.room_bytes:
        figure = f"{exact_bytes(exchanges.room_bytes)} of buffers for sums over ranks"
        rows.append(("outside the arena", figure))
    if plan.host_bytes:
        copies = model_copies(plan)
        states = plan.host_state_bytes
        which = f", of which states {exact_bytes(states)}" if states else ""
        rows.append(("on the host", exact_bytes(plan.host_bytes) + which))
        rows.append(
            (
                "copies",
                f"{format_bytes(copies.out_bytes)} to the host, {format_bytes(copies.in_bytes)} "
                f"back, {copies.stall_seconds * 1e3:.3f} ms of stalls by the cost model",
            )
        )
    if again.nodes:
        rows.append(
            (
                "recomputed",
                f"{again.nodes} nodes, {again.extra_flops_fraction:+.1%} flops, "
                f"{again.extra_time_fraction:+.1%} time by the cost model",
            )
        )
    return rows


def head(plan: MemoryPlan) -> str:
    """Return the first line of the summary."""
    return f"plan: allocate={plan.allocate} recompute={plan.recompute} alignment={plan.alignment}"


def _summary(plan: MemoryPlan) -> list[str]:
    return [head(plan), *(line for row in summary_rows(plan) for line in _row(*row))]


def _streams(plan: MemoryPlan) -> Iterator[list[str]]:
    """Yield the rows of the table of stream schedules, if the plan has streams.

    A star marks the schedule of the plan.
    """
    streams = plan.streams
    if streams is None:
        return
    title = f"{streams.count} streams, by the cost model without launches"
    if plan.device.kind == "cpu":
        title += ", if the CPU ran them concurrently"
    lines = [title, f"  {'bytes':>15}{'arena':>14}{'a step':>14}{'faster':>10}"]
    for choice in streams.choices:
        faster = streams.one_stream_seconds / choice.seconds if choice.seconds else 1.0
        is_plan = (choice.arena_bytes, choice.seconds) == (plan.arena_bytes, streams.seconds)
        lines.append(
            f"  {choice.arena_bytes:>15,}{format_bytes(choice.arena_bytes):>14}"
            f"{choice.seconds * 1e3:>11.3f} ms{faster:>9.2f}x{'  *' if is_plan else ''}"
        )
    yield lines


def _row(label: str, figure: str, indent: int = INDENT) -> list[str]:
    """Return a label with a figure as lines; a long figure is wrapped in its own column."""
    return textwrap.wrap(
        figure,
        WIDTH,
        initial_indent=f"  {label:<{indent - 2}}",
        subsequent_indent=" " * indent,
        break_on_hyphens=False,
    )


def _kinds(plan: MemoryPlan) -> list[str]:
    lines = ["bytes by kind, before sharing"]
    for kind, size in plan.bytes_by_kind.items():
        if kind == "mirror" and not size:
            continue
        lines.append(f"  {kind_name(kind):<20}{format_bytes(size):>12}")
    return lines


def kind_name(kind: str) -> str:
    """Return the name of a kind in printouts, where values on the host have their label."""
    return kind_label(kind) if kind == "host" else kind


def _node_rows(plan: MemoryPlan) -> Iterator[tuple[str, ...]]:
    """Yield (node, call, value, type, bytes, offset, how, live) for each output of each node."""
    names = plan.graph.names
    for step, node in enumerate(plan.graph.nodes):
        for index, value in enumerate(node.outputs):
            placement = plan.placements[value]
            how: str = placement.how
            if placement.over is not None:
                how = f"{how} {names[placement.over]}"
            yield (
                str(step) if index == 0 else "",
                _call(plan, node) if index == 0 else "",
                names[value],
                str(value.type),
                format_bytes(value.type.bytes),
                f"{plan.address(value):#x}",
                how,
                format_bytes(plan.live_profile[step]) if index == 0 else "",
            )


NODE_COLUMNS = ("node", "call", "value", "type", "bytes", "offset", "how", "live")


def _call(plan: MemoryPlan, node: Node) -> str:
    operands = ", ".join(plan.graph.names[value] for value in node.inputs)
    title = node.op.title(node.attributes)
    return f"{title}({operands})" if len(operands) <= 48 else f"{title}(...)"


def _nodes(plan: MemoryPlan) -> list[str]:
    rows = [NODE_COLUMNS, *_node_rows(plan)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(NODE_COLUMNS))]
    lines = ["nodes"]
    for row in rows:
        cells = [
            cell.rjust(w) if i in (0, 4, 5, 7) else cell.ljust(w)
            for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  " + "  ".join(cells).rstrip())
    return lines


def _peak(plan: MemoryPlan) -> list[str]:
    step = plan.peak_step
    at = plan.graph.nodes[step].label if plan.graph.nodes else "start"
    title = f"peak at node {step} ({at}): {format_bytes(plan.live_bytes)} live"
    lines = textwrap.wrap(title, WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    for size, kind, name in peak_rows(plan):
        lines += _row(f"{size:>12}  {kind}", name, PEAK_INDENT)
    return lines


def peak_rows(plan: MemoryPlan) -> Iterator[tuple[str, str, str]]:
    """Yield (bytes, kind, value) of the largest buffers live at the peak."""
    peak = plan.peak_step
    alive = plan.live_at(peak)
    for buffer in alive[:LARGEST]:
        yield (
            format_bytes(buffer.bytes),
            kind_at(plan, buffer, peak),
            buffer_name(plan, buffer, peak),
        )
    if len(alive) > LARGEST:
        rest = sum(buffer.bytes for buffer in alive[LARGEST:])
        yield format_bytes(rest), "", f"in {len(alive) - LARGEST} smaller buffers"
