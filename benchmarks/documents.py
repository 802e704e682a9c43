"""Put the figures of the result files into the documents that tell them.

A document holds them between two comments, of which the first names the block::

    <!-- figures: step times -->
    ...
    <!-- end of figures -->

Each block is made of one file, and ends with what that file says of the run: the date, the commit,
the machine and the versions.
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

from gpu_tables import gpu_status, gpu_steps
from report import RESULTS, table

ROOT = Path(__file__).parents[1]
DOCUMENTS = (
    "README.md",
    "docs/costs.md",
    "docs/gpu-status.md",
    "docs/gpu.md",
    "docs/onnx.md",
    "docs/packing.md",
    "docs/parallel.md",
    "docs/internals/remat.md",
    "docs/torch.md",
    "docs/viewing.md",
)
BLOCK = re.compile(r"(<!-- figures: ([\w ]+) -->\n).*?(<!-- end of figures -->)", re.DOTALL)
PACKED = {
    "MiniMalloc A": "A.1048576",
    "MiniMalloc E": "E.1048576",
    "MiniMalloc H": "H.1048576",
    "ResNet-50 training trace": "somas_tensors_resnet50",
    "tiny BERT training trace": "somas_tiny_bert",
}
"""Instances of the README's table, by the names that it gives them."""

LARGE, FEW = 50_000, 500
"""Buffers from which on, and up to which, generated instances are told of."""


def heights(content: dict[str, Any]) -> str:
    found = {row["instance"]: row for row in content["instances"]}
    lines = [("instance", "buffers", "best fit", "largest first", "graphc")]
    for label, name in PACKED.items():
        row = found[name]
        relative = (f"{row[key]:.3f}" for key in ("best fit", "size first", "height"))
        lines.append((label, f"{row['buffers']:,}", *relative))
    gaps = [row["gap"] for row in content["zoo"]]
    return (
        f"Heights over the most bytes live at one time, the bound that no packing goes below:\n\n"
        f"{table(*lines)}\n\n"
        f"Of the networks below under every recomputation policy, the median arena is "
        f"{100 * statistics.median(gaps):.1f} % above that bound,\n"
        f"and the worst {100 * max(gaps):.1f} %."
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
        f"Heights over the most bytes live at one time; seconds and memory are the process's:\n\n"
        f"{table(*lines)}\n\n"
        f"Of {len(small)} generated instances of up to {FEW} buffers, {proven} are packed at that "
        "bound, which proves them.\n"
        f"{len(full)} more that nearly fill the arena end at {min(full):.3f} to {max(full):.3f}; "
        "their least height is not known."
    )


def gaps_of_budgets(content: dict[str, Any]) -> str:
    rows = content["rows"]
    networks = {row["network"] for row in rows}
    held = sum(row["holds"] and row["arena_bytes"] <= row["budget"] for row in rows)
    # Where the smallest arena is that without recomputation, there is nothing to choose.
    least = {name: min(r["budget"] for r in rows if r["network"] == name) for name in networks}
    chosen = [row for row in rows if least[row["network"]] < row["most"]]
    median = statistics.median(row["gap"] for row in chosen)
    worst = max(chosen, key=operator.itemgetter("gap"))
    return (
        f"Of {len(rows)} budgets for the {len(networks)} networks below, {held} held. Of the "
        f"{len(chosen)} where there is a\nchoice, the median plan's step was at most "
        f"{100 * median:.2f} % longer than the shortest that is possible within\nthe same bytes "
        f"([how](docs/recomputation.md)), the worst, {worst['network']} within "
        f"{worst['budget'] / 2**20:.0f} MiB, {100 * worst['gap']:.0f} %."
    )


def budgets(content: dict[str, Any]) -> str:
    head = "arena MiB, least to most", "extra time at the least", "half way"
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
    """Extra time found / proven, by share of the way from the least arena to the plain one."""
    rows = content["rows"]
    shares = sorted({row["share"] for row in rows})
    head = *(f"{share:.0%}" for share in shares), "seconds a plan"
    lines = [("network", "arena MiB, least to most", *head)]
    for row in content["summary"]:
        found = {each["share"]: each for each in rows if each["network"] == row["network"]}
        times = (f"{found[s]['extra_time']:.1%} / {found[s]['proven']:.1%}" for s in shares)
        seconds = sorted(each["seconds"] for each in found.values())
        sizes = f"{row['least MiB']:.0f} to {row['most MiB']:.0f}"
        lines.append((row["network"], sizes, *times, f"{seconds[0]:.0f} to {seconds[-1]:.0f}"))
    return table(*lines)


def small_lstm(content: dict[str, Any]) -> str:
    """Extra time found, the least in the same order, and what is proven for all orders."""
    lines = [("layers", "share", "found", "least in this order", "proven")]
    for row in content["rows"]:
        least, proven = row["least in this order"], row["proven in this order"]
        is_proven = abs(least - proven) < 1e-9
        told = f"{least:.1%}" if is_proven else f"at most {least:.1%}"
        found = f"{row['found']:.1%}", told, f"{row['proven for all orders']:.1%}"
        lines.append((str(row["layers"]), f"{row['share']:.0%}", *found))
    return table(*lines)


def step_times(content: dict[str, Any]) -> str:
    """With a column for each of the figures that the file has."""
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
    return "Seconds of a training step over those of torch eager:\n\n" + table(*lines)


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
    """By nodes the seconds of a plan, of one with fusion and of one within a budget."""
    head = "nodes", "seconds", "MiB at most", "with fusion", "within nine tenths of the bytes"
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
        f"Seconds grow with nodes to the power of {grown:.2f}. A node takes {most:.1f} KiB at most "
        f"while it is planned;\nof up to {most_held:,} nodes a plan holds {max(held):.1f} a node."
    )


def placing_times(content: dict[str, Any]) -> str:
    """By nodes how long places take, by packing and by coloring, and how large arenas are."""
    lines = [("nodes", "packed, seconds", "arena / live", "coloring, seconds", "arena / live")]
    for row in content["placed"]:
        found = (row["packed_seconds"], row["packed_over_live"])
        colored = (row["coloring_seconds"], row["coloring_over_live"])
        figures = (f"{x:.3f}" for x in (*found, *colored))
        lines.append((f"{row['nodes']:,}", *figures))
    grown = content["exponents"]
    return (
        f"{table(*lines)}\n\n"
        f"Seconds grow with nodes to the power of {grown['packing']:.2f} by packing, and of "
        f"{grown['coloring']:.2f} by coloring."
    )


def zooming(content: dict[str, Any]) -> str:
    first, second = content["rows"][1:]
    return (
        f"A step of zooming is drawn in {first['median zoom ms']:.0f} ms with "
        f"{first['buffers']:,} buffers (ResNet-1001) and in {second['median zoom ms']:.0f} ms "
        f"with {second['buffers']:,}, by the\nmedian of 80. From the turn of the wheel to the end "
        f"of drawing the longest took {first['longest since wheel ms']:.0f} ms and "
        f"{second['longest since wheel ms']:.0f} ms. The page of\nResNet-1001 has "
        f"{first['page MB']:.1f} MB and is written in {first['write seconds']:.1f} s. That is "
        f"headless Chromium {content['chromium'].split('.')[0]} on two cores."
    )


def light_models(content: dict[str, Any]) -> str:
    columns = "weights", "a place for every value", "packed", "within a budget", "extra flops"
    lines = [("network", "batch", *columns)]
    sizes = "state_bytes", "without_sharing_bytes", "arena_bytes", "least_arena_bytes"
    for row in content["rows"]:
        mark = "" if row["budget_met"] else " (the least)"
        cells = [f"{row[size] / 2**20:,.0f}" for size in sizes]
        extra = f"{row['extra_flops_fraction']:.1%}"
        lines.append((row["network"], str(row["batch"]), *cells[:3], cells[3] + mark, extra))
    return "MiB of a training step with SGD; the budget is two thirds of the packed arena:\n\n" + (
        table(*lines)
    )


def resnet_from_onnx(content: dict[str, Any]) -> str:
    (row,) = (row for row in content["rows"] if row["network"] == "resnet50")
    most, packed, least = (
        f"{row[size] / 2**20:,.0f} MiB"
        for size in ("without_sharing_bytes", "arena_bytes", "least_arena_bytes")
    )
    return (
        f"The ResNet-50 that comes with onnx's package, trained with SGD at batch {row['batch']}: "
        f"{most} with a place for every value,\n{packed} packed, and {least} within a budget of "
        f"two thirds of that, for {row['extra_flops_fraction']:.1%} more flops."
    )


def torch_budgets(content: dict[str, Any]) -> str:
    """Where checkpoint takes fewer bytes than graphc's least, its plan is the least."""
    sizes = "eager MiB", "least", "measured / planned", "same bits"
    times = "`aot_eager`", "budget 0.9", "0.5", "0.1"
    head = ("module", *sizes, *times, "`checkpoint` MiB", "its time", "graphc's at as many bytes")
    ratios = [row["over_checkpoint"] for row in content["rows"]]
    return (
        "Times are those of a step over torch eager's; a budget of 0.5 stands halfway between the "
        "least that is found\nand the peak without repeats:\n\n"
        f"{table(head, *map(torch_budgets_row, content['rows']))}\n\n"
        f"Against checkpoint at as many bytes a step takes {statistics.median(ratios):.2f} of its "
        f"time by the median, {min(ratios):.2f} at\nleast and {max(ratios):.2f} at most."
    )


def torch_in_short(content: dict[str, Any]) -> str:
    rows = content["rows"]
    plans = [plan for row in rows for plan in (*row["budgets"], row["at_equal_bytes"])]
    measured = max(plan["measured_over_planned"] for plan in plans)
    same = sum(map(has_same_bits, plans))
    ratio = statistics.median(row["over_checkpoint"] for row in rows)
    worst = max(rows, key=lambda row: row["over_checkpoint"])
    return (
        f"Of {len(plans)} plans for {len(rows)} modules the measured peak is at most "
        f"{measured:.3f} of the planned one, and {same} have the bits of\n`aot_eager`. With as "
        f"many bytes as `checkpoint` takes around each block, a step needs {ratio:.2f} of its time "
        f"by the median and {worst['over_checkpoint']:.2f}\nat the worst, for "
        f"{worst['module']}: [all of them](docs/torch.md#measured)."
    )


def has_same_bits(plan: dict[str, Any]) -> bool:
    return all(plan[f"{what}_equal"] for what in ("gradients", "buffers", "random_state"))


def torch_budgets_row(row: dict[str, Any]) -> tuple[str, ...]:
    plans = [*row["budgets"], row["at_equal_bytes"]]
    same = sum(map(has_same_bits, plans))
    sizes = row["eager_bytes"], row["least_bytes"], row["checkpoint_bytes"]
    eager, least, checkpoint = (f"{size / 2**20:.0f}" for size in sizes)
    measured = max(plan["measured_over_planned"] for plan in plans)
    before = [row["aot_eager_over_eager"]]
    before += [row["budgets"][at]["time_over_eager"] for at in (0, 2, -1)]
    after = row["checkpoint_over_eager"], row["at_equal_bytes"]["time_over_eager"]
    return (
        *(row["module"], eager, least, f"{measured:.3f}", f"{same} of {len(plans)}"),
        *(f"{time:.2f}" for time in before),
        checkpoint,
        *(f"{time:.2f}" for time in after),
    )


BLOCKS: dict[str, tuple[str, Callable[[dict[str, Any]], str]]] = {
    "heights of packings": ("packing.json", heights),
    "large packings": ("packing_families.json", large_packings),
    "gaps of budgets": ("budgets.json", gaps_of_budgets),
    "budgets": ("budgets.json", budgets),
    "wide budgets": ("budgets_wide.json", wide_budgets),
    "a long LSTM": ("budgets_lstm_256.json", wide_budgets),
    "a small LSTM": ("small_lstm.json", small_lstm),
    "step times": ("step_time.json", step_times),
    "planned times": ("planned_time.json", planned_times),
    "rank times": ("rank_time.json", rank_times),
    "planning times": ("planning_time.json", planning_times),
    "placing times": ("planning_time.json", placing_times),
    "light models": ("light_models.json", light_models),
    "ResNet from ONNX": ("light_models.json", resnet_from_onnx),
    "torch in short": ("torch_budgets.json", torch_in_short),
    "torch budgets": ("torch_budgets.json", torch_budgets),
    "zooming": ("page_zoom.json", zooming),
    "H200 status": ("gpu_day_h200.json", gpu_status),
    "H100 status": ("gpu_day_h100.json", gpu_status),
    "H200 steps": ("gpu_day_h200.json", gpu_steps),
    "H100 steps": ("gpu_day_h100.json", gpu_steps),
}


def circumstances_told(content: dict[str, Any], link: str) -> str:
    versions = ", ".join(f"{name} {number}" for name, number in content["versions"].items())
    return (
        f"([{link.rpartition('/')[2]}]({link}): {content['date']}, commit {content['commit']}, "
        f"{content['machine']}, Python {content['python']}, {versions}.)"
    )


def renewed(text: str, folder: Path, results: Path = RESULTS) -> str:
    """The text of a document in a folder, with all blocks as the result files have them."""

    def block(found: re.Match[str]) -> str:
        name, told = BLOCKS[found[2]]
        content = json.loads((results / name).read_text())
        link = Path(os.path.relpath(RESULTS / name, folder)).as_posix()
        return f"{found[1]}\n{told(content)}\n\n{circumstances_told(content, link)}\n\n{found[3]}"

    return BLOCK.sub(block, text)


def main() -> None:
    for name in DOCUMENTS:
        path = ROOT / name
        path.write_text(renewed(path.read_text(), path.parent))


if __name__ == "__main__":
    main()
