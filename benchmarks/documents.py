"""Generate the tables of measurements in the documents from the result files.

A block is between two comments, of which the first names it::

    <!-- figures: step times -->
    ...
    <!-- end of figures -->

Each block comes from one result file and ends with the date, commit, machine and versions of that
measurement. Run ``python benchmarks/documents.py`` after a measurement.
"""

from __future__ import annotations

import json
import operator
import os
import re
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

from gpu_tables import fit_on_gpu, gpu_link, gpu_status, gpu_steps, planned_on_gpu
from model_tables import (
    checkpointing,
    compiled_in_short,
    fit_accuracy,
    real_models,
    torch_budgets,
    torch_compiled,
    torch_planning_times,
)
from offload_tables import chains, host_states, offload
from report import RESULTS, table

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    "README.md",
    "docs/benchmarks.md",
    "docs/gpu-status.md",
    "docs/lengths.md",
    "docs/offload.md",
)
BLOCK = re.compile(r"(<!-- figures: ([\w ]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
PACKED = {
    "MiniMalloc A": "A.1048576",
    "MiniMalloc E": "E.1048576",
    "MiniMalloc H": "H.1048576",
    "ResNet-50 training trace": "somas_tensors_resnet50",
    "tiny BERT training trace": "somas_tiny_bert",
}
"""Instances in the table of packings, by their labels."""

LARGE, FEW = 50_000, 500
"""Least size of generated instances in the table, and largest size in the sentence below it."""


def heights(content: dict[str, Any]) -> str:
    found = {row["instance"]: row for row in content["instances"]}
    lines = [("instance", "buffers", "best fit", "largest first", "graphc")]
    for label, name in PACKED.items():
        row = found[name]
        relative = (f"{row[key]:.3f}" for key in ("best fit", "size first", "height"))
        lines.append((label, f"{row['buffers']:,}", *relative))
    gaps = [row["gap"] for row in content["zoo"]]
    return (
        f"Arena size over the peak live bytes, which no packing can go below:\n\n"
        f"{table(*lines)}\n\n"
        "Over all models and recomputation policies, the arena exceeds this bound by "
        f"{100 * statistics.median(gaps):.1f} %\n(median) and {100 * max(gaps):.1f} % (worst)."
    )


def large_packings(content: dict[str, Any]) -> str:
    found = {row["instance"]: row for row in content["generated"]}
    lines = [("instance", "buffers", "best fit", "graphc", "seconds", "memory, MiB")]
    for name, row in found.items():
        if row["buffers"] >= LARGE:
            relative = (f"{row[key]:.3f}" for key in ("best fit", "height"))
            cost = f"{row['seconds']:.0f}", f"{row['peak MiB']:,.0f}"
            lines.append((name, f"{row['buffers']:,}", *relative, *cost))
    small = {name: row for name, row in found.items() if row["buffers"] <= FEW}
    full = [small.pop(name)["height"] for name in list(small) if name.startswith("full ")]
    proven = sum(row["optimal"] for row in small.values())
    return (
        "Arena size over the peak live bytes; seconds and memory of the process:\n\n"
        f"{table(*lines)}\n\n"
        f"Of {len(small)} generated instances of up to {FEW} buffers, {proven} are packed at the "
        f"bound, so they are optimal.\n{len(full)} more that nearly fill the arena end at "
        f"{min(full):.3f} to {max(full):.3f}; their optimum is unknown."
    )


def gaps_of_budgets(content: dict[str, Any]) -> str:
    rows = content["rows"]
    networks = {row["network"] for row in rows}
    held = sum(row["holds"] and row["arena_bytes"] <= row["budget"] for row in rows)
    # If no plan is smaller than the one without recomputation, there is nothing to choose.
    least = {name: min(r["budget"] for r in rows if r["network"] == name) for name in networks}
    chosen = [row for row in rows if least[row["network"]] < row["most"]]
    median = statistics.median(row["gap"] for row in chosen)
    worst = max(chosen, key=operator.itemgetter("gap"))
    return (
        f"Of {len(rows)} budgets for {len(networks)} models, {held} held. In the {len(chosen)} "
        "cases with a choice, the median\nplan's step takes at most "
        f"{100 * median:.2f} % longer than the proven minimum within the same bytes. The\nworst is "
        f"{worst['network']} within {worst['budget'] / 2**20:.0f} MiB: {100 * worst['gap']:.0f} %."
    )


def budgets(content: dict[str, Any]) -> str:
    head = "arena MiB, smallest to largest", "extra time at the smallest", "halfway"
    lines = [("network", *head, "median gap", "largest gap", "seconds a plan")]
    for row in content["summary"]:
        seconds = [r["seconds"] for r in content["rows"] if r["network"] == row["network"]]
        lines.append(
            (
                row["network"],
                f"{row['least MiB']:.0f} to {row['most MiB']:.0f}",
                f"{row['extra at least']:.1%}",
                f"{row['extra half way']:.1%}",
                f"{row['median gap']:.2%}",
                f"{row['largest gap']:.1%}",
                f"{min(seconds):.0f} to {max(seconds):.0f}",
            )
        )
    return table(*lines)


def wide_budgets(content: dict[str, Any]) -> str:
    """Extra time found / proven minimum, by position between the smallest and largest arena."""
    rows = content["rows"]
    shares = sorted({row["share"] for row in rows})
    head = *(f"{share:.0%}" for share in shares), "seconds a plan"
    lines = [("network", "arena MiB, smallest to largest", *head)]
    for row in content["summary"]:
        found = {each["share"]: each for each in rows if each["network"] == row["network"]}
        times = (f"{found[s]['extra_time']:.1%} / {found[s]['proven']:.1%}" for s in shares)
        seconds = sorted(each["seconds"] for each in found.values())
        sizes = f"{row['least MiB']:.0f} to {row['most MiB']:.0f}"
        lines.append((row["network"], sizes, *times, f"{seconds[0]:.0f} to {seconds[-1]:.0f}"))
    return table(*lines)


def small_lstm(content: dict[str, Any]) -> str:
    """Extra time found, the minimum in the same order, and the bound for all orders."""
    lines = [("layers", "share", "found", "minimum in this order", "lower bound")]
    for row in content["rows"]:
        least, proven = row["least in this order"], row["proven in this order"]
        is_proven = abs(least - proven) < 1e-9
        shown = f"{least:.1%}" if is_proven else f"at most {least:.1%}"
        found = f"{row['found']:.1%}", shown, f"{row['proven for all orders']:.1%}"
        lines.append((str(row["layers"]), f"{row['share']:.0%}", *found))
    return table(*lines)


def step_times(content: dict[str, Any]) -> str:
    """Step times, with a column for each figure in the file."""
    rows = content["rows"]
    columns = {
        "ratio": ("ratio", 1, ".2f"),
        "ratio_compiled": ("over `torch.compile`'s", 1, ".2f"),
        "ratio_jax": ("over JAX's", 1, ".2f"),
        "graphc_resident_bytes": ("MiB resident", 2**20, ",.0f"),
        "torch_resident_bytes": ("torch's MiB", 2**20, ",.0f"),
    }
    shown = {key: column for key, column in columns.items() if any(key in row for row in rows)}
    lines = [("network", *(head for head, _, _ in shown.values()))]
    for row in rows:
        figures = ((row.get(key), *column[1:]) for key, column in shown.items())
        cells = (
            "-" if found is None else f"{found / unit:{form}}" for found, unit, form in figures
        )
        lines.append((row["network"], *cells))
    return "Step time divided by the step time of torch eager:\n\n" + table(*lines)


def planned_times(content: dict[str, Any]) -> str:
    lines = [("network", "planned ms", "measured ms", "planned over measured")]
    for row in content["rows"]:
        times = (f"{row[key] * 1e3:,.0f}" for key in ("planned_seconds", "measured_seconds"))
        lines.append((row["network"], *times, f"{row['planned_over_measured']:.2f}"))
    return table(*lines)


def rank_times(content: dict[str, Any]) -> str:
    head = "network", "graphc ms", "sharded ms", "DDP ms", "graphc / DDP", "sharded / DDP"
    lines = [head]
    for row in content["rows"]:
        names = ("graphc_seconds", "sharded_seconds", "torch_seconds")
        times = (f"{row[name] * 1e3:.1f}" for name in names)
        ratios = (f"{row[name]:.2f}" for name in ("ratio", "ratio_sharded"))
        lines.append((row["network"], *times, *ratios))
    return table(*lines)


def planning_times(content: dict[str, Any]) -> str:
    """Planning seconds by number of nodes: plain, with fusion, and within a budget."""
    head = "nodes", "seconds", "peak MiB", "with fusion", "within 90 % of the bytes"
    lines, rows = [head], content["rows"]
    for row in rows:
        budget = row["budget_seconds"]
        lines.append(
            (
                f"{row['nodes']:,}",
                f"{row['total_seconds']:.1f}",
                f"{row['peak_mib']:,.0f}",
                f"{row['fused_seconds']:.1f}",
                "-" if budget is None else f"{budget:.1f}",
            )
        )
    grown, most = content["exponents"]["compile"], max(row["kib_per_node"] for row in rows)
    held = [row["held_kib_per_node"] for row in rows if row["held_kib_per_node"] is not None]
    most_held = rows[len(held) - 1]["nodes"]
    return (
        f"{table(*lines)}\n\n"
        f"Time grows as nodes to the power of {grown:.2f}. Planning takes at most {most:.1f} KiB "
        f"per node. With up to\n{most_held:,} nodes, a plan takes {max(held):.1f} KiB per node."
    )


def placing_times(content: dict[str, Any]) -> str:
    """Seconds of packing and coloring by number of nodes, and the size of the arena."""
    lines = [("nodes", "packed, seconds", "arena / live", "coloring, seconds", "arena / live")]
    for row in content["placed"]:
        found = (row["packed_seconds"], row["packed_over_live"])
        colored = (row["coloring_seconds"], row["coloring_over_live"])
        figures = (f"{x:.3f}" for x in (*found, *colored))
        lines.append((f"{row['nodes']:,}", *figures))
    grown = content["exponents"]
    return (
        f"{table(*lines)}\n\n"
        f"Time grows as nodes to the power of {grown['packing']:.2f} for packing and "
        f"{grown['coloring']:.2f} for coloring."
    )


def zooming(content: dict[str, Any]) -> str:
    first, second = content["rows"][1:]
    return (
        f"Zooming draws a frame in {first['median zoom ms']:.0f} ms with {first['buffers']:,} "
        f"buffers (ResNet-1001) and in {second['median zoom ms']:.0f} ms with\n"
        f"{second['buffers']:,} (median of 80). The slowest frame took "
        f"{first['longest since wheel ms']:.0f} ms and {second['longest since wheel ms']:.0f} ms. "
        f"The page of ResNet-1001\nhas {first['page MB']:.1f} MB and is written in "
        f"{first['write seconds']:.1f} s. Headless Chromium "
        f"{content['chromium'].split('.')[0]}, two cores."
    )


def modeled_streams(content: dict[str, Any]) -> str:
    """Speedups over one stream, in the same bytes and with all values apart."""
    ways = "the same bytes", "all apart"
    columns = [(count, way) for count in (2, 4) for way in ways]
    lines = [("model", "one stream, MiB", *(f"{n} streams, {way}" for n, way in columns))]
    rows = {(r["network"], r["streams"], r.get("within")): r for r in content["plans"]}
    for (name, count, _), row in rows.items():
        if count == 1:
            found = [rows[name, *column] for column in columns]
            cells = (f"{r['times_one_stream']:.2f} ({_mebibytes(r)} MiB)" for r in found)
            lines.append((f"`{name}`", _mebibytes(row), *cells))
    return table(*lines)


def measured_streams(content: dict[str, Any]) -> str:
    """Milliseconds of a step, and the speedup over one stream."""
    lines = [("model", "one stream, ms", "2 streams", "4 streams")]
    rows = content["measured_on_cpu"]
    for name in dict.fromkeys(row["network"] for row in rows):
        found = [row for row in rows if row["network"] == name]
        cells = (f"{r['step_ms']:.2f} ({r['times_one_stream']:.2f})" for r in found[1:])
        lines.append((f"`{name}`", f"{found[0]['step_ms']:.2f}", *cells))
    return table(*lines)


def _mebibytes(row: dict[str, Any]) -> str:
    return f"{row['arena_bytes'] / 2**20:,.1f}"


def light_models(content: dict[str, Any]) -> str:
    columns = "weights", "`none`", "packed", "within a budget", "extra flops"
    lines = [("network", "batch", *columns)]
    sizes = "state_bytes", "without_sharing_bytes", "arena_bytes", "least_arena_bytes"
    for row in content["rows"]:
        mark = "" if row["budget_met"] else " (minimum)"
        cells = [f"{row[size] / 2**20:,.0f}" for size in sizes]
        extra = f"{row['extra_flops_fraction']:.1%}"
        lines.append((row["network"], str(row["batch"]), *cells[:3], cells[3] + mark, extra))
    return "MiB of a training step with SGD; the budget is two thirds of the packed arena:\n\n" + (
        table(*lines)
    )


def lengths(content: dict[str, Any]) -> str:
    head = "lengths", "sizes", "padding", "ms a step", "to one size", "to a plan per length"
    lines = [(*head, "arena GiB", "as separate programs")]
    for row in content["rows"]:
        lines.append(
            (
                row["distribution"],
                f"{row['choice']}: {', '.join(map(str, row['sizes']))}",
                f"{row['padding']:.1%}",
                f"{row['step_ms']:.1f}",
                f"{row['times_one_size']:.2f}",
                f"{row['times_every_length']:.2f}",
                f"{row['arena_bytes'] / 2**30:.2f}",
                f"{row['separate_arenas_bytes'] / 2**30:.2f}",
            )
        )
    names: dict[str, list[str]] = {}
    for name, source in content["sources"].items():
        names.setdefault(source, []).append(name)
    sources = "; ".join(f"{' and '.join(each)}: {source}" for source, each in names.items())
    return (
        f"{content['network']}, {content['device']}, modeled at {len(content['points'])} lengths "
        f"and interpolated:\n\n{table(*lines)}\n\nSources: {sources}."
    )


BLOCKS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "heights of packings": ("packing.json", heights),
    "large packings": ("packing_families.json", large_packings),
    "gaps of budgets": ("budgets.json", gaps_of_budgets),
    "budgets": ("budgets.json", budgets),
    "wide budgets": ("budgets_wide.json", wide_budgets),
    "a long LSTM": ("budgets_lstm_256.json", wide_budgets),
    "a small LSTM": ("small_lstm.json", small_lstm),
    "offload": ("offload.json", offload),
    "host states": ("host_states.json", host_states),
    "chains with a link": ("offload_chains.json", chains),
    "step times": ("step_time.json", step_times),
    "step times on Intel": ("step_time_intel.json", step_times),
    "planned times": ("planned_time.json", planned_times),
    "rank times": ("rank_time.json", rank_times),
    "planning times": ("planning_time.json", planning_times),
    "placing times": ("planning_time.json", placing_times),
    "lengths": ("lengths.json", lengths),
    "light models": ("light_models.json", light_models),
    "streams modeled": ("streams.json", modeled_streams),
    "streams measured": ("streams.json", measured_streams),
    "torch budgets": ("torch_budgets.json", torch_budgets),
    "compiled in short": ("torch_compiled.json", compiled_in_short),
    "torch compiled": ("torch_compiled.json", torch_compiled),
    "real models": ("real_models.json", real_models),
    "checkpointing": ("real_models.json", checkpointing),
    "torch planning times": ("torch_planning_time.json", torch_planning_times),
    "zooming": ("page_zoom.json", zooming),
    "H200 status": ("gpu_day_h200.json", gpu_status),
    "H100 status": ("gpu_day_h100.json", gpu_status),
    "H200 steps": ("gpu_day_h200.json", gpu_steps),
    "H100 steps": ("gpu_day_h100.json", gpu_steps),
    "H200 link": ("gpu_day_h200_tests.json", gpu_link),
    "GPT of torch on the H200": ("gpu_day_h200.json", planned_on_gpu),
    "torch on the H200": ("gpu_day_h200_torch.json", planned_on_gpu),
    "fit on the H200": ("fit_on_gpu.json", fit_on_gpu),
    "fit accuracy": ("fit_accuracy.json", fit_accuracy),
}


def circumstances_line(content: dict[str, Any], link: str) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in content["versions"].items())
    return (
        f"([{link.rpartition('/')[2]}]({link}): {content['date']}, commit {content['commit']}, "
        f"{content['machine']}, Python {content['python']}, {versions}.)"
    )


def renewed(text: str, folder: Path, results: Path = RESULTS) -> str:
    """Return the text of a document in a folder with all its blocks generated again."""

    def block(found: re.Match[str]) -> str:
        name, write = BLOCKS[found[2]]
        content = json.loads((results / name).read_text())
        link = Path(os.path.relpath(RESULTS / name, folder)).as_posix()
        return f"{found[1]}\n{write(content)}\n\n{circumstances_line(content, link)}\n\n{found[3]}"

    return BLOCK.sub(block, text)


def main() -> None:
    for name in DOCUMENTS:
        path = ROOT / name
        path.write_text(renewed(path.read_text(), path.parent))


if __name__ == "__main__":
    main()
