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


def gpu_steps(content: dict[str, Any]) -> str:
    """Milliseconds of steps on a GPU, measured and modelled, and of peers in the same run."""
    rows = [(f"{content['gpu']}, bf16", "ms a step", "modeled", "times torch.compile",
             "times torch eager")]  # fmt: skip
    for network, variants in content["steps"].items():
        peers = [content["peers"].get(f"{network}-{how}") for how in ("compile", "eager")]
        for variant, figures in variants.items():
            if "problem" in figures:
                rows.append((f"{network}, {variant}", figures["problem"], "-", "-", "-"))
                continue
            measured = figures["milliseconds"]
            ratios = [f"{measured / p['milliseconds']:.2f}" if p else "-" for p in peers]
            modelled = f"{figures['modelled_milliseconds']:.1f}"
            rows.append((f"{network}, {variant}", f"{measured:.1f}", modelled, *ratios))
    return table(*rows)
