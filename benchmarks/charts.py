"""Drawing the figures of figures.py from the content of their JSON files, and from nothing else.

The same content gives the same bytes: a PNG carries no date, and settings of the user do not count.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

Content = dict[str, Any]

STYLES = {
    "none": ("#000000", "o", "-"),
    "inplace": ("#4d4d4d", "s", "-"),
    "sharing": ("#7a7a7a", "^", "-"),
    "packed": ("#7a7a7a", "v", (0, (4, 2))),
    "cheap": ("#e69f00", "D", "-"),
    "sublinear": ("#0072b2", "P", "-"),
    "recursive": ("#009e73", "X", "-"),
    "optimal": ("#d55e00", "*", "-"),
}
"""Colour, marker and line of each policy: greys keep everything, and the colours of Okabe and Ito
(told apart by colour-blind readers) compute again. `packed` is dashed, as `sharing` may lie under
it."""

MARKER_SIZES = {"P": 8, "X": 8, "*": 11}
DOTTED = (0, (1, 1.6))
QUIET = "#555555"


def draw(content: Content, path: Path) -> None:
    """Write the PNG of one figure."""
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        drawn = _draw_step_times(content) if "baseline" in content else _draw_bytes(content)
        FigureCanvasAgg(drawn)
        path.parent.mkdir(parents=True, exist_ok=True)
        # By default it is matplotlib's version, and would change the bytes of an equal picture.
        drawn.savefig(path, dpi=160, metadata={"Software": None})
    print(f"written to {path}")


def _draw_bytes(content: Content) -> Figure:
    """Fig. 5 and 6: bytes against size, both logarithmic, with others' fixed figures dotted."""
    figure = Figure(figsize=(8.4, 5.4))
    axes = figure.add_axes((0.105, 0.105, 0.665, 0.745))
    _heading(figure, content["title"], f"{content['network']}. {content['note']}")
    compared = content["comparison"]["lines"]
    for line in compared:
        colour, _, _ = STYLES[line["beside"]]
        sizes, heights = zip(*line["feature_map_bytes"], strict=True)
        axes.plot(sizes, heights, color=colour, linestyle=DOTTED, linewidth=1.1)
    ends = _lines(axes, content, "feature_map_bytes")
    values = [row["feature_map_bytes"] for row in content["rows"]]
    values += [height for line in compared for _, height in line["feature_map_bytes"]]
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.set_ylim(min(values) / 1.3, max(values) * 1.3)
    lowest, highest = (math.floor(math.log2(limit)) for limit in axes.get_ylim())
    every = 1 + (highest - lowest) // 10
    ticks = [2.0**power for power in range(lowest, highest + 1, every)]
    axes.yaxis.set_major_locator(FixedLocator(ticks))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda size, _: bytes_label(size)))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.set_ylabel("feature maps")
    _size_axis(axes, content)
    _direct_labels(axes, [(*end, f"{end[0]}  {bytes_label(end[2])}") for end in ends])
    return figure


def _draw_step_times(content: Content) -> Figure:
    """Fig. 7: seconds of a step on the left, over those without recomputation on the right."""
    figure = Figure(figsize=(10.4, 4.8))
    seconds = figure.add_axes((0.062, 0.115, 0.3, 0.7))
    ratio = figure.add_axes((0.56, 0.115, 0.3, 0.7))
    _heading(figure, content["title"], f"{content['network']}. {content['note']}")
    for policy in content["policies"]:
        colour, _, _ = STYLES[policy["label"]]
        rows = [row for row in content["rows"] if row["policy"] == policy["label"]]
        sizes = [row[content["variable"]] for row in rows]
        predicted = [1 + row["extra_flops_fraction"] for row in rows]
        ratio.plot(sizes, predicted, color=colour, linestyle=DOTTED, linewidth=1.1)
    at_end = _lines(seconds, content, "median_seconds")
    ratio_at_end = _lines(ratio, content, "ratio")
    seconds.set_ylim(bottom=0)
    seconds.set_ylabel("seconds of a step")
    ratio.set_ylabel(f"step time over that of {content['baseline']}")
    ratio.yaxis.set_major_formatter(FuncFormatter(lambda height, _: f"{height:.1f}×"))
    for axes in (seconds, ratio):
        axes.yaxis.set_major_locator(MaxNLocator(7))
        _size_axis(axes, content)
    _direct_labels(seconds, [(*end, f"{end[0]}  {end[2]:.2f} s") for end in at_end])
    _direct_labels(ratio, [(*end, f"{end[0]}  {end[2]:.2f}×") for end in ratio_at_end])
    return figure


def draw_compiled(content: Content, path: Path) -> None:
    """Write the PNG of torch_compiled.json: step time against peak, a panel per network."""
    names = list(dict.fromkeys(row["network"] for row in content["rows"]))
    columns = min(len(names), 3)
    with matplotlib.rc_context():
        matplotlib.rcdefaults()
        figure = Figure(figsize=(3.4 * columns, 0.6 + 2.7 * -(-len(names) // columns)))
        FigureCanvasAgg(figure)
        for number, name in enumerate(names, start=1):
            axes = figure.add_subplot(-(-len(names) // columns), columns, number)
            rows = [r for r in content["rows"] if r["network"] == name and "refused" not in r]
            for label, begins, style in COMPILED:
                points = sorted(
                    (row["peak_bytes"] / 2**20, row["time_over_eager"])
                    for row in rows
                    if row["way"].startswith(begins)
                )
                axes.plot(*zip(*points, strict=True), style, label=label, markersize=5)
            axes.set_title(name, fontsize=10)
            axes.set_ylim(bottom=0)
            axes.grid(color="#dddddd", linewidth=0.6)
            if number == 1:
                axes.set_xlabel("peak, MiB", fontsize=8)
                axes.set_ylabel("time over eager", fontsize=8)
                axes.legend(fontsize=6)
        figure.tight_layout()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=120, metadata={"Software": None})
    print(f"written to {path}")


COMPILED = (
    ("eager, checkpoint", ("eager", "checkpoint"), "k:s"),
    ("torch.compile, checkpoint", "torch.compile", "C0--^"),
    ("activation_memory_budget", "activation", "C1-o"),
    ("graphc", "graphc", "C3-*"),
)
"""Lines of a panel: a label, the beginnings of their ways, and a style."""


def bytes_label(size: float) -> str:
    """At most three figures: 48.7 GiB, 834 MiB, 64 MiB."""
    for unit in ("B", "KiB", "MiB"):
        if size < 1000:
            return f"{size:.3g} {unit}"
        size /= 1024
    return f"{size:.3g} GiB"


def _heading(figure: Figure, title: str, note: str) -> None:
    left = 0.012
    figure.text(left, 0.975, title, fontsize=12.5, fontweight="bold", va="top")
    figure.text(left, 0.925, note, fontsize=8.5, color=QUIET, va="top", linespacing=1.35)


def _lines(axes: Axes, content: Content, key: str) -> list[tuple[str, float, float]]:
    """One line a policy; returns the label and the last point of each."""
    ends = []
    for policy in content["policies"]:
        label = policy["label"]
        colour, marker, stroke = STYLES[label]
        rows = [row for row in content["rows"] if row["policy"] == label]
        sizes, heights = [row[content["variable"]] for row in rows], [row[key] for row in rows]
        axes.plot(
            sizes, heights, color=colour, linestyle=stroke, linewidth=1.7, marker=marker,
            markersize=MARKER_SIZES.get(marker, 6), markeredgecolor="white", markeredgewidth=0.5,
        )  # fmt: skip
        ends.append((label, float(sizes[-1]), float(heights[-1])))
    return ends


def _size_axis(axes: Axes, content: Content) -> None:
    """The horizontal axis has a tick at each size; frame and grid stay in the background."""
    sizes = sorted({row[content["variable"]] for row in content["rows"]})
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:g}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.set_xlabel(content["axis"])
    axes.grid(color="#e3e3e3", linewidth=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color("#b0b0b0")


def _direct_labels(axes: Axes, ends: Sequence[tuple[str, float, float, str]]) -> None:
    """Each line's text beside its last point, moved up or down where two would overlap."""
    axes.autoscale_view()
    to_axes = axes.transData + axes.transAxes.inverted()
    places = [float(to_axes.transform((size, height))[1]) for _, size, height, _ in ends]
    text_points = 9
    assert axes.figure is not None
    axes_points = axes.get_position().height * axes.figure.get_figheight() * 72
    moved = spread(places, 1.45 * text_points / axes_points)
    for (label, size, height, text), place in zip(ends, moved, strict=True):
        colour, _, _ = STYLES[label]
        axes.annotate(
            text, xy=(size, height), xytext=(1.07, place), textcoords="axes fraction",
            va="center", fontsize=text_points, color=colour, annotation_clip=False,
            arrowprops={
                "arrowstyle": "-", "color": colour, "linewidth": 0.6, "shrinkA": 1, "shrinkB": 5,
                "relpos": (0, 0.5),
            },
        )  # fmt: skip


def spread(places: Sequence[float], gap: float) -> list[float]:
    """The places nearest to the given ones, in their order, at least `gap` apart.

    Labels that would overlap form a block around the mean of where its members want to be.
    """
    order = sorted(range(len(places)), key=lambda index: places[index])
    blocks: list[tuple[float, int]] = []  # the mean of the lowest place wanted, and how many
    for rank, index in enumerate(order):
        start, count = places[index] - rank * gap, 1
        while blocks and blocks[-1][0] > start:
            below, others = blocks.pop()
            start = (start * count + below * others) / (count + others)
            count += others
        blocks.append((start, count))
    starts = [start for start, count in blocks for _ in range(count)]
    moved = [0.0] * len(places)
    for rank, index in enumerate(order):
        moved[index] = starts[rank] + rank * gap
    return moved
