"""Tables of the documents on what ran on a GPU, from the result files of benchmarks/gpu_day."""

from __future__ import annotations

from typing import Any

from report import table


def gpu_status(content: dict[str, Any]) -> str:
    """The tests of each part on a GPU, and what failed."""
    rows = [(f"{content['gpu']}: part", "passed", "failed")]
    for part, counts in content["by_part"].items():
        failures = ", ".join(f"`{name}`" for name in counts["failures"])
        rows.append((part, str(counts["passed"]), failures or "none"))
    selftest = content["selftest"]
    if selftest["passed"] or selftest["failures"]:
        failures = ", ".join(f"{c['network']}: {c['subject']}" for c in selftest["failures"])
        rows.append(("`graphc selftest`", str(selftest["passed"]), failures or "none"))
    return table(*rows)


def fit_on_gpu(content: dict[str, Any]) -> str:
    """Return the measured and predicted peaks of torch's training steps."""
    rows = [(f"{content['gpu']}: step", "allocated MiB", "predicted", "reserved MiB", "predicted")]
    for row in content["rows"]:
        cells = []
        for kind in ("allocated", "reserved"):
            measured, error = row[f"{kind}_bytes"], row[f"{kind}_error"]
            known = measured is not None
            cells.append(f"{measured / 2**20:,.0f}" if known else "-")
            cells.append(f"{100 * error:+.2f} %" if known else "-")
        rows.append((row["case"], *cells))
    return table(*rows)


def planned_on_gpu(content: dict[str, Any]) -> str:
    """Return bytes and times of torch's steps: eager, checkpointed, and planned by graphc."""
    rows = [
        (f"{content['gpu']}: forward and backward pass", "planned MiB", "measured MiB", "ms",
         "times eager"),
    ]  # fmt: skip
    for name, steps in content["planned"].items():
        for label, step in steps.items():
            planned = step.get("planned_bytes")
            cells = ["-" if planned is None else f"{planned / 2**20:,.0f}"]
            if "milliseconds" in step:
                times = step["milliseconds"] / steps["eager"]["milliseconds"]
                measured = f"{step['peak_bytes'] / 2**20:,.0f}"
                cells += [measured, f"{step['milliseconds']:.1f}", f"{times:.2f}"]
            else:
                refused = step["problem"].startswith("BudgetError")
                cells += ["no plan fits" if refused else "failed", "-", "-"]
            rows.append((f"{name}, {label}", *cells))
    return table(*rows)


def gpu_link(content: dict[str, Any]) -> str:
    """Return the rates of copies between pinned host memory and the GPU."""
    rows = [("bytes of a copy", "to the GPU, GB/s", "to the host, GB/s", "both at once, GB/s")]
    for size, seconds in content["link"].items():
        if size.isdecimal():
            ways = ("to_device_seconds", 1), ("to_host_seconds", 1), ("both_seconds", 2)
            rates = (f"{n * int(size) / seconds[way] / 1e9:.1f}" for way, n in ways)
            rows.append((f"{int(size):,}", *rates))
    products = content["link"]["products"]
    slower = products["beside_copies_seconds"] / products["alone_seconds"] - 1
    return (
        f"{table(*rows)}\n\nMatrix products take {100 * slower:.0f} % longer beside copies of the "
        "last size in both directions."
    )


def gpu_steps(content: dict[str, Any]) -> str:
    """Milliseconds of steps on a GPU, measured and modelled, and of peers in the same run."""
    rows = [(f"{content['gpu']}, bf16", "ms a step", "modeled", "times torch.compile",
             "times torch eager", "arena MiB")]  # fmt: skip
    for network, variants in content["steps"].items():
        peers = [content["peers"].get(f"{network}-{how}") for how in ("compile", "eager")]
        for variant, figures in variants.items():
            if "problem" in figures:
                rows.append((f"{network}, {variant}", figures["problem"], "-", "-", "-", "-"))
                continue
            measured = figures["milliseconds"]
            ratios = [f"{measured / p['milliseconds']:.2f}" if p else "-" for p in peers]
            modelled = f"{figures['modelled_milliseconds']:.1f}"
            arena = f"{figures['arena_bytes'] / 2**20:,.0f}"
            rows.append((f"{network}, {variant}", f"{measured:.1f}", modelled, *ratios, arena))
    return table(*rows)
