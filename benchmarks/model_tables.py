"""Tables of the documents on plans and predictions for modules of torch."""

from __future__ import annotations

import statistics
from typing import Any

from report import table

Row = dict[str, Any]


def real_models(content: dict[str, Any]) -> str:
    """Return one line per class, and the reason of each refusal."""
    rows = [row for row in content["rows"] if "error" not in row]
    refused = [f"- {row['class']}: {row['error']}" for row in content["rows"] if "error" in row]
    plans = [plan for row in rows for plan in row["plans"].values()]
    same = sum(plan["same_bits"] for plan in plans)
    over = max(plan["measured_bytes"] / plan["planned_bytes"] for plan in plans)
    seconds = [row["planning_cpu_seconds"]["total"] for row in rows]
    per_node = [100 * each / row["nodes"] for each, row in zip(seconds, rows, strict=True)]
    sizes = "eager MiB", "knee", "halfway", "minimum", "lower bound"
    times = "time, knee", "halfway", "minimum"
    head = ("class", "nodes", "planning s", *sizes, *times)
    return (
        f"{len(rows)} of {len(content['rows'])} classes can be planned. Of {len(plans)} plans, "
        f"{same} match `aot_eager` or, where its graph breaks, eager torch bit for bit. No\n"
        f"measured peak exceeds {over:.3f} of its plan. Planning takes "
        f"{statistics.median(per_node):.2f} CPU seconds per 100 nodes (median). "
        "Step times are those over torch eager's:\n\n"
        f"{table(head, *map(real_models_row, rows))}"
        + ("\n\nRefused:\n\n" + "\n".join(refused) if refused else "")
    )


def real_models_row(row: Row) -> tuple[str, ...]:
    plans = [row["plans"][label] for label in ("knee", "halfway", "least")]
    sizes = [row["eager_bytes"], *(p["measured_bytes"] for p in plans), row["bound_bytes"]]
    seconds = row["planning_cpu_seconds"]["total"]
    times = (f"{plan['time_over_eager']:.2f}" for plan in plans)
    return (row["class"], f"{row['nodes']:,}", f"{seconds:.1f}", *map(mebibytes, sizes), *times)


def checkpointing(content: dict[str, Any]) -> str:
    """Return peaks and times of the models' own checkpointing, and of plans in its bytes."""
    labels = "checkpointing", "minimum", "same bytes"
    lines = [
        ("class", "eager MiB", "checkpointing", "graphc's minimum", "time, checkpointing",
         "graphc's minimum", "graphc in the bytes of checkpointing")
    ]  # fmt: skip
    for row in content["checkpointing"]:
        sizes = (mebibytes(row["bytes"][label]) for label in ("eager", *labels[:2]))
        times = (f"{row['time_over_eager'][label]:.2f}" for label in labels)
        lines.append((row["class"], *sizes, *times))
    return table(*lines)


def mebibytes(count: int) -> str:
    return f"{count / 2**20:.1f}"


def fit_accuracy(content: dict[str, Any]) -> str:
    """Absolute errors of predicted peaks, by predictor."""
    lines = [("predictor", "steps", "median error", "worst error")]
    for name, errors in content["summary"].items():
        shown = (f"{100 * errors[key]:.3g} %" for key in ("median", "worst"))
        lines.append((name.replace("_", "-"), str(errors["rows"]), *shown))
    return table(*lines)


def torch_budgets(content: dict[str, Any]) -> str:
    """One row per module; if checkpoint takes less than graphc's minimum, that plan is compared."""
    sizes = "eager MiB", "minimum", "measured / planned", "same bits"
    times = "`aot_eager`", "budget 0.9", "0.5", "0.1"
    head = ("module", *sizes, *times, "`checkpoint` MiB", "its time", "graphc in the same bytes")
    rows = content["rows"]
    ratios = [row["over_checkpoint"] for row in rows]
    plans = [plan for row in rows for plan in (*row["budgets"], row["at_equal_bytes"])]
    measured = max(plan["measured_over_planned"] for plan in plans)
    return (
        "Times are step times over torch eager's. A budget of 0.5 is halfway between the minimum "
        "found and the peak\nwithout recomputation:\n\n"
        f"{table(head, *map(torch_budgets_row, rows))}\n\n"
        f"Of {len(plans)} plans, {sum(map(has_same_bits, plans))} match `aot_eager` bit for bit. "
        f"No measured peak exceeds {measured:.3f} of its plan. In the\nbytes of `checkpoint`, a "
        f"step takes {statistics.median(ratios):.2f} of its time (median; {min(ratios):.2f} to "
        f"{max(ratios):.2f})."
    )


def compiled_summary(rows: list[Row]) -> list[Row]:
    """Return one line per network: times at equal bytes, and the fewest bytes."""
    found = []
    for name in dict.fromkeys(row["network"] for row in rows):
        of = {row["way"]: row for row in rows if row["network"] == name and "refused" not in row}
        refused = sum("refused" in row for row in rows if row["network"] == name)
        pairs = {way: f"graphc, bytes of {way}" for way in of if f"graphc, bytes of {way}" in of}
        ratios = {
            way: of[mine]["time_over_eager"] / of[way]["time_over_eager"]
            for way, mine in pairs.items()
        }
        by_budget = [r for way, r in ratios.items() if way.startswith("activation")]
        budgets = [row["peak_bytes"] for way, row in of.items() if way.startswith("activation")]
        torchs = [row["peak_bytes"] for way, row in of.items() if way.startswith("torch")]
        mine = [row for way, row in of.items() if way.startswith("graphc")]
        least = min(row["peak_bytes"] for row in mine)
        found.append(
            {
                "network": name,
                "x torch.compile": ratios.get("torch.compile"),
                "x memory budget, median": statistics.median(by_budget) if by_budget else None,
                "worst": max(by_budget, default=None),
                "x checkpoint compiled": ratios.get("torch.compile, checkpoint"),
                "refused": refused,
                "fewest bytes over memory budget's": least / min(budgets),
                "over torch's": least / min(torchs + budgets),
                "measured/planned": max(r["peak_bytes"] / r["planned_bytes"] for r in mine),
                "first call": statistics.median(
                    row["first_seconds"] / of["torch.compile"]["first_seconds"] for row in mine
                ),
            }
        )
    return found


def torch_compiled(content: dict[str, Any]) -> str:
    """Return one line per network; ratios are those of graphc to torch."""
    lines = [
        ("network", "time at equal bytes: torch.compile", "memory budgets, median", "worst",
         "checkpoint compiled", "refused", "fewest bytes over memory budgets'", "over torch's",
         "measured / planned", "first call"),
    ]  # fmt: skip
    for row in compiled_summary(content["rows"]):
        name, *cells = row.values()
        shown = ("" if each is None else f"{each:.2f}" for each in cells)
        lines.append((name, *(cell.removesuffix(".00") for cell in shown)))
    return table(*lines)


def compiled_in_short(content: dict[str, Any]) -> str:
    """Return peaks and times of torch.compile, with checkpoints, and of plans in their bytes."""
    ways = "torch.compile", "torch.compile, checkpoint"
    lines = [
        ("network", "peak MiB, torch.compile", "with `checkpoint`", "graphc's fewest",
         "step time, torch.compile", "with `checkpoint`", "graphc in the same bytes"),
    ]  # fmt: skip
    for name in dict.fromkeys(row["network"] for row in content["rows"]):
        of = {row["way"]: row for row in content["rows"] if row["network"] == name}
        mine = [row for way, row in of.items() if way.startswith("graphc") and "refused" not in row]
        sizes = [of[way]["peak_bytes"] for way in ways] + [min(r["peak_bytes"] for r in mine)]
        same = of.get(f"graphc, bytes of {ways[1]}", {"refused": ""})
        times = [of[way]["time_over_eager"] for way in ways]
        cells = [f"{size / 2**20:.0f}" for size in sizes] + [f"{time:.2f}" for time in times]
        lines.append((name, *cells, "" if "refused" in same else f"{same['time_over_eager']:.2f}"))
    return table(*lines)


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


def torch_planning_times(content: dict[str, Any]) -> str:
    """One row per network: seconds before and now; the figures before have no second size."""
    head = ("network", "nodes", "before: warm", "new size", "now: cold", "warm", "second size")
    lines = [(*head, "third size", "warm, per 100 nodes")]
    before = {(row["network"], row["case"]): row["total"] for row in content["before"]}
    now: dict[str, dict[str, dict[str, Any]]] = {}
    for row in content["rows"]:
        now.setdefault(row["network"], {})[row["case"]] = row
    for name, cases in now.items():
        old = (before[name, case] for case in ("warm", "new shape"))
        times = (cases[case]["total"] for case in ("cold", "warm", "second size", "third size"))
        cells = [f"{time:.1f}" for time in (*old, *times)]
        warm = cases["warm"]
        lines.append((name, f"{warm['nodes']:,}", *cells, f"{warm['per_100_nodes']:.2f}"))
    return (
        "CPU seconds of a plan. Cold has no measurements in the cache, warm has all. The second "
        "size is traced with symbols,\nthe third needs no trace; both measure ops anew:\n\n"
        f"{table(*lines)}"
    )
