"""Plans of the real classes of tests/pytorch/real, and gradient checkpointing of transformers.

Each class is planned at the knee of its trade-off, at the least peak found, and halfway between. A
row has CPU seconds of planning with an empty cache of measurements, peaks, bits against
``backend="aot_eager"`` of one graph, and step times over those of eager torch. The second table
compares five networks with their own ``gradient_checkpointing_enable()``: the least peak found, and
a plan within the peak of checkpointing. There, steps return only the loss. Times are medians of
steps that take turns; each class runs in a process of its own.

Requires the extra `models`. Run: python benchmarks/real_models.py [CLASS ...] [--steps N]
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from report import circumstances, output_argument, print_table, write_json

import graphc

sys.path.append(str(Path(__file__).parents[1] / "tests"))

PACKAGES = ["graphc", "torch", "transformers", "timm", "torchvision", "diffusers", "peft"]
DEEP = {"batch": 8, "length": 128}
LAYERS, WIDTH, HEADS, INNER = 6, 256, 8, 1024
TEXT = {"hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS}
Row = dict[str, Any]


def deep_networks() -> dict[str, Callable[[], Any]]:
    """Return larger cases of five classes, with eager's memory mostly in activations."""
    from pytorch.real import language, perception
    from pytorch.real.language import tokens

    heads = {"num_attention_heads": HEADS}
    llama = {**language.LLAMA, **TEXT, **heads, "num_key_value_heads": HEADS}
    gpt2 = {**language.GPT2, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS}
    t5 = {**language.T5, "d_model": WIDTH, "d_ff": INNER, "num_layers": LAYERS, "num_heads": HEADS}
    vit = {**perception.VIT, **TEXT, **heads, "image_size": 96}
    entries = [
        tokens("LlamaForCausalLM", "Llama", **llama),
        tokens("GPT2LMHeadModel", "GPT2", **gpt2),
        tokens("BertForMaskedLM", "Bert", **{**language.BERT, **TEXT, **heads}),
        tokens("T5ForConditionalGeneration", "T5", **t5),
    ]
    name, make = perception.image_classes("ViTForImageClassification", "ViT", **vit)
    return {**{name: partial(make, **DEEP) for name, make in entries}, name: make}


def class_row(name: str, steps: int) -> Row:
    """Return the row of one class; if it cannot be planned, the row has only the error."""
    from pytorch.real import registry, runs
    from torch_planning_time import timed_parts
    from turns import measure

    make = registry.CLASSES[name]
    _begin()
    cpu_seconds = timed_parts()
    started = time.process_time()
    try:
        knee = runs.planned(runs.new(make))
    except graphc.GraphcError as error:
        reason = getattr(registry.REFUSED.get(name), "reason", str(error).partition("\n")[0])
        return {"class": name, "error": reason}
    total = time.process_time() - started
    report = knee.report
    seconds = {
        "total": total,
        "tracing": total - cpu_seconds["all"],
        "measuring": cpu_seconds["measuring"],
        "planning": cpu_seconds["all"] - cpu_seconds["measuring"] - cpu_seconds["emitting"],
        "emitting": cpu_seconds["emitting"],
    }
    plans = {"knee": knee}
    for label, budget in runs.budgets_below(report).items():
        plans[label] = runs.planned(runs.new(make), budget)
    eager, reference = runs.eager(runs.new(make)), runs.by_aot_eager(runs.new(make))
    wanted = [each.bits() for each in (reference, eager)]
    rows = {label: plan_row(plan, wanted) for label, plan in plans.items()}
    eager_bytes = peak(eager)
    times = measure({"eager": eager, **plans}, steps)
    for label, row in rows.items():
        row["time_over_eager"] = times[label] / times["eager"]
    parameters = sum(each.numel() * each.element_size() for each in eager.module.parameters())
    return {
        "class": name,
        "nodes": len(knee.step.plans[0].torch_steps.joint.nodes),
        "parameter_bytes": parameters,
        "planning_cpu_seconds": seconds,
        "eager_seconds": times["eager"],
        "eager_bytes": eager_bytes,
        "no_recompute_bytes": report.plain_bytes,
        "bound_bytes": report.bound_bytes,
        "plans": rows,
    }


def plan_row(plan: Any, wanted: Any) -> Row:
    from torch_cases.steps import different

    found = plan.bits()  # before more steps change buffers
    measured_bytes = peak(plan)
    # Where its graph breaks, aot_eager may round otherwise; verify() compares with one graph.
    same_bits = [] in [different(found, each) for each in wanted] or plan.step.verify().same_bits
    return {
        "planned_bytes": plan.report.peak_bytes,
        "measured_bytes": measured_bytes,
        "same_bits": same_bits,
        "predicted_extra_time": plan.report.extra_time,
    }


def checkpointing_row(name: str, steps: int) -> Row:
    """Return peaks and times of eager torch, checkpointing, and plans for one network."""
    from pytorch.real import runs
    from turns import measure

    make = deep_networks()[name]
    _begin()
    loss = partial(runs.planned, return_outputs=False)
    least = loss(runs.new(make), max_extra_time=None).report.least_bytes
    compared = {
        "eager": runs.eager(runs.new(make)),
        "checkpointing": runs.checkpointed(runs.new(make)),
        "minimum": loss(runs.new(make), least),
    }
    peaks = {label: peak(each) for label, each in compared.items()}
    budget = max(least, peaks["checkpointing"])
    compared["same bytes"] = loss(runs.new(make), budget)
    peaks["same bytes"] = peak(compared["same bytes"])
    times = measure(compared, steps)
    return {
        "class": name,
        "eager_seconds": times["eager"],
        "bytes": peaks,
        "time_over_eager": {label: each / times["eager"] for label, each in times.items()},
    }


def peak(run: Any) -> int:
    """Return the measured peak of a step; a first one compiles."""
    run()
    return int(run.peak())


def _begin() -> None:
    """Load the compiled loops of planners, and start with an empty cache of measurements."""
    import torch

    warnings.simplefilter("ignore")
    layers = [layer for _ in range(24) for layer in (torch.nn.Linear(64, 64), torch.nn.GELU())]
    graphc.torch.plan(torch.nn.Sequential(*layers), (torch.zeros(512, 64),), "knee")
    os.environ["XDG_CACHE_HOME"] = tempfile.mkdtemp()  # after the loops, which are cached there too


def line(row: Row) -> Row:
    """Return a class's row for the terminal."""
    if "error" in row:
        return {"class": row["class"], **dict.fromkeys(LINE, None)}
    plans = row["plans"].values()
    over = max(plan["measured_bytes"] / plan["planned_bytes"] for plan in plans)
    figures = (
        row["nodes"], row["planning_cpu_seconds"]["total"], row["eager_bytes"] / 2**20,
        *(plan["measured_bytes"] / 2**20 for plan in plans), over,
        sum(plan["same_bits"] for plan in plans), *(plan["time_over_eager"] for plan in plans),
    )  # fmt: skip
    return {"class": row["class"], **dict(zip(LINE, figures, strict=True))}


LINE = (
    "nodes", "plan s", "eager MiB", "knee MiB", "half MiB", "least MiB", "measured/planned",
    "same bits", "knee time", "half time", "least time",
)  # fmt: skip


def main() -> None:
    from pytorch.real.registry import CLASSES

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("classes", nargs="*", metavar="CLASS", help="by default all, and the five")
    parser.add_argument("--steps", type=int, default=5, help="timed steps of each")
    output_argument(parser, "real_models.json")
    options = parser.parse_args()
    earlier = json.loads(options.output.read_text()) if options.output.exists() else {}
    found = {table: {row["class"]: row for row in earlier.get(table, [])} for table in TABLES}
    jobs = [("rows", name) for name in options.classes or CLASSES]
    jobs += [] if options.classes else [("checkpointing", name) for name in deep_networks()]
    # A process for each class starts with nothing compiled, and ends with its memory freed.
    with multiprocessing.get_context("spawn").Pool(1, maxtasksperchild=1) as pool:
        for table, name in jobs:
            row = found[table][name] = pool.apply(TABLES[table], (name, options.steps))
            print_table([line(row) if table == "rows" else row])
            kept = {key: list(rows.values()) for key, rows in found.items()}
            write_json(options.output, {**circumstances(PACKAGES), **kept})


TABLES = {"rows": class_row, "checkpointing": checkpointing_row}

if __name__ == "__main__":
    main()
