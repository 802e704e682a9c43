"""Tables of the documents on real classes, from the result file of benchmarks/real_models.py."""

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
        f"{same} match `aot_eager` bit for bit, and no measured peak exceeds {over:.3f}\nof its "
        f"plan. Planning takes {statistics.median(per_node):.2f} CPU seconds per 100 nodes "
        "(median). Step times are those over torch eager's:\n\n"
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
