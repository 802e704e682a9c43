"""The short text form of a memory plan: at most 40 lines of 100 columns for any network."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator

from graphc.byte_sizes import format_bytes
from graphc.ir.forms import writes
from graphc.plans.memory_plan import Kind, MemoryPlan
from graphc.plans.names import count, kind_at, listed, node_label
from graphc.plans.printout import INDENT, head, kind_name, peak_rows, summary_rows

LINES, WIDTH = 40, 100

HINTS, RECOMPUTED_OPS = 3, 4
"""The maximum numbers of hints that lower the arena, and of recomputed ops listed by name."""


@writes(MemoryPlan, "overview")
def overview(plan: MemoryPlan) -> str:
    """Return the summary, bytes by kind, the peak, and options that would lower it.

    Each row has a fixed number of lines; longer rows are truncated. Hints are derived from the
    kinds of bytes at the peak, without planning again.
    """
    sections = [_summary(plan), _kinds(plan), _peak(plan), _hints(plan)]
    lines = "\n\n".join("\n".join(lines) for lines in sections if lines).splitlines()
    return "\n".join(_cut(line) for line in lines) + "\n"


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3]}..."


def _summary(plan: MemoryPlan) -> list[str]:
    rows = summary_rows(plan)
    if plan.streams is not None:
        figure = f"{plan.streams.count}, {plan.streams.speedup:.2f}x faster by the cost model"
        rows.append(("streams", figure))
    copies = Counter(node.op.name for node in plan.graph.nodes if node.phase == "mirror")
    if copies:
        ops = [f"{number} {name}" for name, number in copies.most_common()]
        rows.append(("recomputed ops", listed(ops, RECOMPUTED_OPS)))
    title = f"{head(plan)}; plan.text() lists {count(len(plan.graph.nodes), 'node')}"
    return [title, *(line for row in rows for line in _row(*row))]


def _row(label: str, figure: str) -> list[str]:
    """Format a label and a figure as one line; the options of a step may take two lines."""
    indent, lines = " " * INDENT, 2 if label == "step" else 1
    return textwrap.wrap(
        figure, WIDTH, initial_indent=f"  {label:<{INDENT - 2}}", subsequent_indent=indent,
        max_lines=lines, placeholder=" ...", break_on_hyphens=False,
    )  # fmt: skip


def _kinds(plan: MemoryPlan) -> list[str]:
    sizes = [(kind, size) for kind, size in plan.bytes_by_kind.items() if size]
    lines = [f"  {kind_name(kind):<20}{format_bytes(size):>12}" for kind, size in sizes]
    return ["bytes by kind, before sharing", *lines] if lines else []


def _peak(plan: MemoryPlan) -> list[str]:
    step = plan.peak_step
    title = f"peak at node {step} ({node_label(plan, step)}): {format_bytes(plan.live_bytes)} live"
    rows = peak_rows(plan)
    return [title, *(f"  {size:>12}  {kind:<14}{name}" for size, kind, name in rows)]


def _hints(plan: MemoryPlan) -> list[str]:
    found = sorted(_lowering(plan), key=lambda hint: -hint[0])[:HINTS]
    return ["options that may lower the peak", *(f"  {text}" for _, text in found)] if found else []


def _lowering(plan: MemoryPlan) -> Iterator[tuple[int, str]]:
    """Yield (bytes, option) for each option that lowers the arena by at most that many bytes."""
    step, held = plan.peak_step, Counter[Kind]()
    for buffer in plan.live_at(step):
        held[kind_at(plan, buffer, step)] += buffer.bytes
    maps, states, trains = held["feature map"], held["state"], "optimizer" in plan.settings
    packed = plan.strategy_bytes.get("packed", plan.arena_bytes)
    if packed < plan.arena_bytes:
        less = plan.arena_bytes - packed
        yield less, f'allocate="packed": {format_bytes(packed)}, {format_bytes(less)} less'
    if plan.settings.get("reorder") is False:
        yield maps, "without reorder=False: another order of nodes may keep fewer values live"
    if held["slot"]:
        yield held["slot"], f"without overlap_copies: {format_bytes(held['slot'])} of slots"
    if maps and trains:
        proven = plan.certificate
        how = 'budget="...", or recompute="optimal"' if proven is None else "a smaller budget"
        bound = "" if proven is None else f"; the bound is {format_bytes(proven.bound_bytes)}"
        yield maps, f"{how}: {format_bytes(maps)} of feature maps{bound}"
    if maps:
        yield maps, "a smaller batch: feature maps, their gradients and inputs shrink with it"
    if states and trains:
        how = 'an optimizer with fewer moments, or shard="states" on several ranks'
        yield states, f"{how}: {format_bytes(states)} of states"
