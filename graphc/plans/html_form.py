"""Notebook display of a plan or a graph: a summary and a static picture.

The picture is SVG inside HTML, small enough for a notebook cell: rectangles too small to be seen
are omitted. `graphc view` writes the page with search and zoom.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape

from graphc.byte_sizes import format_bytes
from graphc.ir.forms import writes
from graphc.ir.graph import Graph
from graphc.plans.memory_plan import Kind, MemoryPlan
from graphc.plans.names import buffer_name, kind_label, spans
from graphc.plans.printout import summary_rows

COLOURS: dict[Kind, str] = {
    "state": "#8c9196",
    "input": "#56b4e9",
    "feature map": "#0072b2",
    "gradient": "#e69f00",
    "mirror": "#009e73",
    "workspace": "#cc79a7",
    "slot": "#d55e00",
    "gathered": "#f0e442",
    "fetched": "#b3b7bb",
    "host": "#8a6d3b",
}
"""The colors of kinds in all pictures of plans: those of Okabe and Ito, which color-blind readers
can distinguish."""

WIDTH, MAP_HEIGHT, CURVE_HEIGHT = 720, 260, 70
"""The sizes of the picture, in CSS pixels."""

RECTANGLES = 1500
"""The maximum number of rectangles drawn, largest first, to keep a notebook cell small."""

OPS = 8
"""The number of ops that the summary of a graph lists."""


@writes(MemoryPlan, "html")
def plan_html(plan: MemoryPlan) -> str:
    """Return the HTML of a plan: its summary, its map of addresses and its curve of live bytes."""
    rows = [("plan", f"allocate={plan.allocate}, recompute={plan.recompute}"), *summary_rows(plan)]
    return f"<div>{_table(rows)}{_legend(plan)}{_map(plan)}{_curve(plan)}</div>"


@writes(Graph, "html")
def graph_html(graph: Graph) -> str:
    """Return the HTML of a graph: counts of nodes, and a chart of the bytes that each writes."""
    phases = Counter(node.phase for node in graph.nodes)
    ops = Counter(node.op.name for node in graph.nodes).most_common(OPS)
    states = sum(state.type.bytes for state in graph.states)
    rows = [
        ("nodes", f"{len(graph.nodes)}: " + _listed(f"{n} {phase}" for phase, n in phases.items())),
        ("most frequent", _listed(f"{name} {count}" for name, count in ops)),
        ("inputs", _listed(f"{value.name} {value.type}" for value in graph.inputs)),
        ("states", f"{len(graph.states)} of {format_bytes(states)}"),
        ("outputs", _listed(f"{name} {value.type}" for name, value in graph.outputs.items())),
    ]
    written = [sum(value.type.bytes for value in node.outputs) for node in graph.nodes]
    title = f"bytes written by each node, at most {format_bytes(max(written, default=0))}"
    return f"<div>{_table(rows)}{_bars(written, title)}</div>"


def _listed(parts: Iterable[str]) -> str:
    return ", ".join(parts)


def _table(rows: Sequence[tuple[str, str]]) -> str:
    cells = "".join(
        f'<tr><td style="text-align:left">{escape(label)}</td>'
        f'<td style="text-align:left">{escape(figure)}</td></tr>'
        for label, figure in rows
    )
    return f"<table>{cells}</table>"


def _legend(plan: MemoryPlan) -> str:
    there = {span.kind for buffer in plan.arena_buffers for span in spans(plan, buffer)}
    present = [kind for kind in COLOURS if kind in there]
    return "".join(
        f'<span style="margin-right:1em"><span style="background:{COLOURS[kind]}">&emsp;</span> '
        f"{kind_label(kind)}</span>"
        for kind in present
    )


def _svg(height: int, title: str, shapes: Iterable[str]) -> str:
    return (
        f'<svg role="img" width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}" '
        f'style="display:block;margin:4px 0;border:1px solid #8c919680">'
        f"<title>{escape(title)}</title>{''.join(shapes)}</svg>"
    )


def _map(plan: MemoryPlan) -> str:
    """Return the picture of the arena: a rectangle for each span of each buffer.

    The horizontal axis has the nodes, the vertical axis the addresses.
    """
    across, up = WIDTH / len(plan.live_profile), MAP_HEIGHT / max(1, plan.arena_bytes)
    parts = [(span, buffer) for buffer in plan.arena_buffers for span in spans(plan, buffer)]
    parts.sort(key=lambda part: -(part[0].last - part[0].first) * part[1].bytes)
    shapes = []
    for span, buffer in parts[:RECTANGLES]:
        top = MAP_HEIGHT - (buffer.offset + buffer.bytes) * up
        shapes.append(
            f'<rect x="{span.first * across:.2f}" y="{top:.2f}" '
            f'width="{(span.last - span.first) * across:.2f}" height="{buffer.bytes * up:.2f}" '
            f'fill="{COLOURS[span.kind]}"><title>'
            f"{escape(buffer_name(plan, buffer, span.first))}, {format_bytes(buffer.bytes)}"
            "</title></rect>"
        )
    return _svg(MAP_HEIGHT, f"arena address against node, {plan.arena_bytes} bytes", shapes)


def _curve(plan: MemoryPlan) -> str:
    """Return a chart of the live bytes at each step, with a label."""
    label = f"live bytes, at most {format_bytes(plan.live_bytes)} at node {plan.peak_step}"
    return f"<div>{escape(label)}</div>{_bars(plan.live_profile, label)}"


def _bars(sizes: Sequence[int], title: str) -> str:
    """Return a chart of sizes with one bar per pixel.

    If several sizes fall on one pixel, the bar shows the largest.
    """
    columns = min(len(sizes), WIDTH)
    most = max(sizes, default=0) or 1
    path = []
    for column in range(columns):
        begin, end = column * len(sizes) // columns, (column + 1) * len(sizes) // columns
        height = max(sizes[begin:end]) / most * (CURVE_HEIGHT - 4)
        left, right = column * WIDTH / columns, (column + 1) * WIDTH / columns
        y = CURVE_HEIGHT - height
        path.append(f"{left:.1f},{y:.1f} {right:.1f},{y:.1f}")
    points = f"0,{CURVE_HEIGHT} {' '.join(path)} {WIDTH},{CURVE_HEIGHT}"
    return _svg(CURVE_HEIGHT, title, [f'<polygon points="{points}" fill="#0072b2"></polygon>'])
