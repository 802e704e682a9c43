"""Pictures of plans, drawn with matplotlib. Equal plans give identical bytes."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Literal, Protocol

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.collections import PolyCollection
    from matplotlib.figure import Figure
    from matplotlib.patches import Patch
    from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator
except ImportError as error:
    from graphc.errors import DependencyError, to_install

    cure = to_install("matplotlib", "view")
    raise DependencyError(f"pictures require matplotlib; {cure}") from error

from graphc.byte_sizes import format_bytes
from graphc.plans.html_form import COLOURS
from graphc.plans.memory_plan import Buffer, Kind, MemoryPlan
from graphc.plans.names import kind_label, spans
from graphc.view.page_model import arena_kinds, kinds_of, live_by_kind

LIGHTNESS = (1.0, 0.93, 1.07)


def _shade(colour: str, lightness: float) -> tuple[float, ...]:
    return tuple(min(1.0, int(colour[at : at + 2], 16) / 255 * lightness) for at in (1, 3, 5))


SHADES = {kind: [_shade(colour, each) for each in LIGHTNESS] for kind, colour in COLOURS.items()}
"""Kind → three shades of its color, so that adjacent buffers of one kind differ."""

BORDERS = {kind: _shade(colour, 0.68) for kind, colour in COLOURS.items()}

BORDERED = 1 / 150
"""A rectangle gets a border if its width and height are at least this fraction of the map's."""

MARK, QUIET, GRID = "#d00000", "#555555", "#e3e3e3"

TICKS = 8
"""Approximate number of labels on a byte axis."""

DOTS_PER_INCH = 160


def plan_picture(plan: MemoryPlan, title: str) -> bytes:
    """Return a PNG of arena address by node, above the curve of live bytes with its peak.

    A plan with copies to the host has a map of host memory between them.
    """
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        figure = Figure(figsize=(9, 6))
        figure.suptitle(title, x=0.105, y=0.975, ha="left", fontsize=12, fontweight="bold")
        heights = (3.2, 1.1, 1) if plan.host_bytes else (3.2, 1)
        addresses, *on_host, live = figure.subplots(
            len(heights), 1, sharex=True,
            gridspec_kw={"height_ratios": heights, "hspace": 0.09, "left": 0.105, "right": 0.985,
                         "top": 0.885, "bottom": 0.085},
        )  # fmt: skip
        _draw_map(addresses, plan, plan.arena_buffers, 0, plan.arena_bytes)
        addresses.set_ylabel("arena address")
        for axes in on_host:
            buffers = [buffer for buffer in plan.buffers if buffer.kind == "host"]
            _draw_map(axes, plan, buffers, plan.host_start, plan.host_bytes, TICKS // 2)
            axes.set_ylabel("host address")
        _draw_live(live, plan)
        there = {span.kind for buffer in plan.buffers for span in spans(plan, buffer)}
        present = [kind for kind in kinds_of(plan) if kind in there]
        _legend(figure, present, 0.098, 0.945)
        return _png(figure)


def _legend(figure: Figure, kinds: Sequence[Kind], left: float, top: float) -> None:
    figure.legend(
        handles=[Patch(color=COLOURS[kind], label=kind_label(kind)) for kind in kinds],
        ncols=len(kinds), loc="upper left", bbox_to_anchor=(left, top), frameon=False, fontsize=9,
        handlelength=1.0, columnspacing=1.4,
    )  # fmt: skip


def _draw_map(
    axes: Axes,
    plan: MemoryPlan,
    buffers: Sequence[Buffer],
    start: int,
    size: int,
    ticks: int = TICKS,
) -> None:
    """Draw the buffers of a memory of `size` bytes, whose first offset is `start`."""
    corners, colours, edges = [], [], []
    steps = len(plan.live_profile)
    for buffer in buffers:
        low = buffer.offset - start
        high = low + buffer.bytes
        for left, right, kind in spans(plan, buffer):
            corners.append(((left, low), (right, low), (right, high), (left, high)))
            colours.append(SHADES[kind][buffer.index % len(LIGHTNESS)])
            is_large = min((right - left) / steps, (high - low) / max(1, size)) >= BORDERED
            edges.append(BORDERS[kind] if is_large else colours[-1])
    # The line keeps rectangles thinner than a pixel visible.
    axes.add_collection(
        PolyCollection(corners, facecolors=colours, edgecolors=edges, linewidth=0.3)
    )
    axes.set_xlim(0, steps)
    axes.set_ylim(0, max(1, size))
    _byte_axis(axes, size, ticks)


def _draw_live(axes: Axes, plan: MemoryPlan) -> None:
    steps = list(range(len(plan.live_profile) + 1))
    profile = [*plan.live_profile, plan.live_profile[-1]]
    by_kind, below = live_by_kind(plan), [0] * len(steps)
    for kind in arena_kinds(plan):
        sizes = [step[kind] for step in (*by_kind, by_kind[-1])]
        above = [low + size for low, size in zip(below, sizes, strict=True)]
        axes.fill_between(steps, below, above, step="post", color=COLOURS[kind], linewidth=0)
        below = above
    axes.step(steps, profile, where="post", color="#1c2024", linewidth=0.8)
    axes.plot([plan.peak_step + 0.5], [plan.live_bytes], "o", color=MARK, markersize=4)
    is_left = plan.peak_step < 0.6 * len(plan.live_profile)
    axes.annotate(
        f"peak {format_bytes(plan.live_bytes)}, node {plan.peak_step}",
        (plan.peak_step + 0.5, plan.live_bytes), xytext=(7 if is_left else -7, 3),
        textcoords="offset points", ha="left" if is_left else "right", color=MARK, fontsize=9,
        annotation_clip=False,
    )  # fmt: skip
    axes.set_ylim(0, plan.live_bytes * 1.2 or 1)
    axes.set_xlabel("node")
    axes.set_ylabel("live bytes")
    _byte_axis(axes, plan.live_bytes, TICKS // 2)


def compare_picture(plans: Sequence[tuple[str, MemoryPlan]], title: str) -> bytes:
    """Return a PNG with one bar per plan: live bytes at the peak by kind, and unused arena bytes.

    The parts of a bar sum to the arena size; bytes on the host are written beside it.
    """
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        tall = 1.45 + 0.42 * len(plans)
        figure = Figure(figsize=(9, tall))
        axes = figure.add_axes((0.24, 0.6 / tall, 0.73, 0.42 * len(plans) / tall))
        figure.suptitle(title, x=0.02, y=1 - 0.12 / tall, ha="left", fontsize=12, fontweight="bold")
        _legend(figure, arena_kinds(*(plan for _, plan in plans)), 0.013, 1 - 0.36 / tall)
        for row, (_, plan) in enumerate(plans):
            left = 0
            for kind, size in peak_bytes_by_kind(plan).items():
                axes.barh(row, size, left=left, color=COLOURS[kind], height=0.68)
                left += size
            spare = plan.arena_bytes - left
            if spare > 0:
                axes.barh(row, spare, left=left, facecolor="none", edgecolor=QUIET, hatch="////",
                          linewidth=0.5, height=0.68)  # fmt: skip
            host = f" + {format_bytes(plan.host_bytes)} on the host" if plan.host_bytes else ""
            axes.annotate(
                f"{format_bytes(plan.arena_bytes)}{host}", (max(left, plan.arena_bytes), row),
                xytext=(5, 0), textcoords="offset points", va="center", fontsize=9,
            )  # fmt: skip
        axes.set_yticks(range(len(plans)), [label for label, _ in plans])
        axes.invert_yaxis()
        largest = max((plan.arena_bytes for _, plan in plans), default=1)
        has_host = any(plan.host_bytes for _, plan in plans)
        axes.set_xlim(0, largest * (1.4 if has_host else 1.13))
        axes.set_xlabel("bytes of the arena: live at the peak by kind; hatched, not used there")
        _byte_axis(axes, largest, which="x")
        return _png(figure)


def peak_bytes_by_kind(plan: MemoryPlan) -> dict[Kind, int]:
    """Return the live bytes at the peak by kind; they sum to `live_bytes`."""
    return live_by_kind(plan)[plan.peak_step]


class Point(Protocol):
    """The attributes of a frontier point that a picture needs."""

    @property
    def arena_bytes(self) -> int: ...

    @property
    def extra_time_fraction(self) -> float: ...


def frontier_picture(
    points: Sequence[Point],
    policies: Mapping[str, MemoryPlan],
    bound_bytes: int,
    title: str,
    labels: tuple[str, str] = ("arena", "extra time by the cost model, %"),
) -> bytes:
    """Return a PNG of extra time by arena bytes: frontier points, and the plans of policies.

    `labels` are the axis labels.
    """
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        figure = Figure(figsize=(8, 5))
        axes = figure.add_axes((0.095, 0.105, 0.875, 0.745))
        figure.suptitle(title, x=0.02, y=0.975, ha="left", fontsize=12, fontweight="bold")
        sizes = [point.arena_bytes for point in points]
        extra = [100 * point.extra_time_fraction for point in points]
        axes.plot(sizes, extra, "o-", color="#0072b2", markersize=4, linewidth=1.3,
                  label="plans by budget", drawstyle="steps-post")  # fmt: skip
        axes.axvline(bound_bytes, color=QUIET, linestyle=(0, (4, 2)), linewidth=1,
                     label=f"no plan below {format_bytes(bound_bytes)}")  # fmt: skip
        for label, plan in policies.items():
            place = (plan.arena_bytes, 100 * plan.recomputation.extra_time_fraction)
            axes.plot(*place, "D", color="#d55e00", markersize=5)
            axes.annotate(label, place, xytext=(6, 4), textcoords="offset points", fontsize=9)
        axes.set_xlabel(labels[0])
        axes.set_ylabel(labels[1])
        largest = max([*sizes, *(plan.arena_bytes for plan in policies.values())], default=1)
        # If most bytes cannot be saved, such as those of states, the axis begins near the bound.
        is_near = largest / 2 <= bound_bytes < largest
        begin = bound_bytes - (largest - bound_bytes) / 10 if is_near else 0
        axes.set_xlim(begin, largest + (largest - begin) / 12)
        axes.set_ylim(bottom=-max([1.0, *extra]) / 40)
        _byte_axis(axes, largest - int(begin), which="x")
        figure.legend(loc="upper left", bbox_to_anchor=(0.013, 0.938), ncols=2, frameon=False,
                      fontsize=9)  # fmt: skip
        return _png(figure)


def loss_picture(
    places: Sequence[int], curves: Mapping[str, Sequence[float]], axis: str, title: str
) -> bytes:
    """Return a PNG of losses by epoch or step.

    `axis` is the label of the horizontal axis, and `places` are the positions on it. Curves may be
    empty.
    """
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        figure = Figure(figsize=(8, 5))
        axes = figure.add_axes((0.095, 0.105, 0.875, 0.745))
        figure.suptitle(title, x=0.02, y=0.975, ha="left", fontsize=12, fontweight="bold")
        for (label, losses), colour in zip(curves.items(), ("#0072b2", "#d55e00"), strict=True):
            if losses:
                axes.plot(places, losses, "o-", color=colour, markersize=4, label=label)
        axes.set_xlabel(axis)
        axes.set_ylabel("loss")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        _plain_axes(axes, "both")
        figure.legend(loc="upper left", bbox_to_anchor=(0.013, 0.938), ncols=2, frameon=False,
                      fontsize=9)  # fmt: skip
        return _png(figure)


def _byte_axis(axes: Axes, largest: int, ticks: int = TICKS, which: str = "y") -> None:
    """Label an axis of bytes at multiples of a power of two."""
    step = 1
    while step * ticks < largest:
        step *= 2
    axis = axes.yaxis if which == "y" else axes.xaxis
    axis.set_major_locator(MultipleLocator(step))
    axis.set_major_formatter(FuncFormatter(lambda size, _: _in_unit_of(step, size)))
    _plain_axes(axes, "y" if which == "y" else "both")


def _plain_axes(axes: Axes, grid: Literal["y", "both"]) -> None:
    """Draw the grid and the frame of a chart in gray."""
    axes.grid(color=GRID, linewidth=0.6, axis=grid)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b0b0b0")


def _in_unit_of(step: int, size: float) -> str:
    """Format a size as an axis label; all labels of an axis have the same unit.

    The unit is the one that fits four steps of the axis.
    """
    figure, unit = format_bytes(4 * step).split()
    return f"{size / (4 * step) * float(figure):g} {unit}" if size else "0"


def _png(figure: Figure) -> bytes:
    FigureCanvasAgg(figure)
    stream = io.BytesIO()
    # By default, the file contains matplotlib's version, which would change the bytes.
    figure.savefig(stream, dpi=DOTS_PER_INCH, format="png", metadata={"Software": None})
    return stream.getvalue()
