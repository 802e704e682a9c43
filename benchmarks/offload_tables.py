"""Tables of the documents on copies to the host, from offload.json, host_states.json
and offload_chains.json."""

from __future__ import annotations

import itertools
import statistics
from collections import Counter
from typing import Any

from report import table

PRECISION = 1e-9
"""Relative difference of seconds up to which two plans are equally fast."""

SLOWED = 1e-6
"""Least extra time of a plan that counts as slower than without a budget."""

RATIOS = (0.0, 0.1, 0.3, 1.0, 3.0)
"""Bounds of the groups of random chains."""


def offload(content: dict[str, Any]) -> str:
    """Extra time with recomputation, with copies to the host, and with both."""
    head = "network", "device", "precision", "budget", "recomputation", "copies", "both"
    lines = [(*head, "lower bound", "GiB on the host", "seconds a plan", "with copies")]
    for row in content["rows"]:
        extra = (_short(row[key]) for key in ("recompute", "offload", "both", "both_bound"))
        stored = row["host_bytes"]
        name = row["network"], row["device"], row["precision"], f"{row['part']:.0%}"
        seconds = (row["recompute_seconds"], row["both_seconds"])
        planning = ("" if each is None else f"{each:.0f}" for each in seconds)
        lines.append((*name, *extra, "" if stored is None else f"{stored / 2**30:.2f}", *planning))
    rows = [row for row in content["rows"] if row["recompute"] is not None]
    halved = sum(row["both"] <= row["recompute"] / 2 for row in rows)
    above = sum(row["both_bound"] > row["recompute"] / 2 for row in rows)
    return (
        f"{table(*lines)}\n\nRecomputation alone has a plan in {len(rows)} of "
        f"{len(content['rows'])} rows. Of these, both together take at most half its extra time in "
        f"{halved}; in {above}, the lower bound is above half."
    )


def host_states(content: dict[str, Any]) -> str:
    """Bytes and modeled steps with the moments of AdamW on the device and on the host."""
    head = "device", "precision", "micro-batches", "arena GiB", "with host states", "host GiB"
    lines = [(*head, "step ms", "with host states", "of it stalls")]
    for row in content["rows"]:
        name = row["device"], row["precision"], str(row["accumulate"])
        sizes = (row[key] for key in ("device_arena_bytes", "host_arena_bytes", "host_bytes"))
        times = (row[key] for key in ("device_step_ms", "host_step_ms", "host_stall_ms"))
        gibibytes = (f"{size / 2**30:.2f}" for size in sizes)
        lines.append((*name, *gibibytes, *(f"{each:,.0f}" for each in times)))
    return table(*lines)


def _short(value: float | None) -> str:
    return "no plan" if value is None else f"{value:.1%}"


def outcome(row: dict[str, Any]) -> str:
    """Return which of POFO and graphc has the faster plan of a chain."""
    if row["pofo"] is None:
        return "only graphc"
    relative = (1 + row["graphc"]) / (1 + row["pofo"])
    if abs(relative - 1) <= PRECISION:
        return "equal"
    return "graphc" if relative < 1 else "POFO"


def chains(content: dict[str, Any]) -> str:
    """Extra time of POFO and graphc on chains of networks, and on random chains by ratio."""
    lines = [("network", "precision", "stages", "budget", "POFO", "graphc", "lower bound")]
    for row in content["networks"]:
        extra = (_percent(row[key]) for key in ("pofo", "graphc", "bound"))
        name = row["network"], row["precision"], str(row["stages"]), f"{row['part']:.0%}"
        lines.append((*name, *extra))
    both = [row for row in content["random"] if row["pofo"] is not None]
    relative = sorted((1 + row["graphc"]) / (1 + row["pofo"]) for row in both)
    slowed = [row for row in both if max(row["graphc"], row["pofo"]) > SLOWED]
    median = statistics.median((1 + row["graphc"]) / (1 + row["pofo"]) for row in slowed)
    counts = Counter(map(outcome, content["random"]))
    return (
        f"{table(*lines)}\n\nRandom chains, by the bytes that the link copies in a forward pass "
        f"over all saved bytes; medians of extra time:\n\n{_groups(content['random'])}\n\n"
        f"Of {len(content['random'])} random chains, graphc is faster on {counts['graphc']} and as "
        f"fast on {counts['equal']}. POFO is faster on {counts['POFO']} and has no plan for "
        f"{counts['only graphc']}.\nThe seconds of graphc's step over those of POFO's are "
        f"{relative[0]:.3f} to {relative[-1]:.3f}, in the median "
        f"{statistics.median(relative):.4f}. On the {len(slowed)} chains on which "
        f"one of them takes extra time, the median is {median:.4f}."
    )


def _groups(rows: list[dict[str, Any]]) -> str:
    names = "graphc", "equal", "POFO", "only graphc"
    head = "copied", "chains", "graphc faster", "equal", "POFO faster", "no plan of POFO"
    lines = [(*head, "POFO", "graphc", "lower bound")]
    for low, high in itertools.pairwise(RATIOS):
        inside = [row for row in rows if low < row["ratio"] <= high]
        if not inside:
            continue
        counts = Counter(map(outcome, inside))
        both = [row for row in inside if row["pofo"] is not None]
        medians = (
            _percent(statistics.median(row[key] for row in both))
            for key in ("pofo", "graphc", "bound")
        )
        cells = (str(counts[name]) for name in names)
        lines.append((f"{low:.0%} to {high:.0%}", str(len(inside)), *cells, *medians))
    return table(*lines)


def _percent(value: float | None) -> str:
    return "none" if value is None else f"{value:.2%}"
