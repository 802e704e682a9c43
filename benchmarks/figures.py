"""Fig. 5, 6 and 7 of "Training Deep Nets with Sublinear Memory Cost", by graphc's plans.

Fig. 5 and 6 are planned: feature-map bytes against depth and sequence length. Fig. 7 is measured:
the seconds of a training step, with and without recomputation. Each is a JSON file of numbers and a
PNG drawn from it; --redraw only draws, also the picture of results/torch_compiled.json.
Run: python benchmarks/figures.py [--figure 5 6 7]
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from charts import bytes_label, draw, draw_compiled
from report import RESULTS, circumstances, print_table, write_json
from step_cases import draw_feeds
from turns import step_seconds

import graphc
from graphc.models import MODELS

FOLDER = Path(__file__).parent.parent / "docs" / "figures"


@dataclass(frozen=True)
class Policy:
    """A line of the figures: its label and what `graphc.plan` gets.

    With `extra_time` the budget too: the fewest bytes on the frontier of plans that add at most
    that part to a step's seconds.
    """

    label: str
    options: Mapping[str, Any]
    extra_time: float | None = None

    def options_for(self, loss: graphc.Value) -> dict[str, Any]:
        """What `graphc.plan` gets for this network."""
        options = dict(self.options)
        if self.extra_time is not None:
            points = graphc.frontier(loss, optimizer=graphc.optim.SGD())
            options["budget"] = min(
                point.arena_bytes
                for point in points
                if point.extra_time_fraction <= self.extra_time
            )
        return options


POLICIES = (
    Policy("none", {"allocate": "none"}),
    Policy("inplace", {"allocate": "inplace"}),
    Policy("sharing", {"allocate": "sharing"}),
    Policy("packed", {"allocate": "packed"}),
    Policy("cheap", {"recompute": "cheap"}),
    Policy("sublinear", {"recompute": "sublinear"}),
    Policy("recursive", {"recompute": "recursive"}),
    Policy("optimal", {"recompute": "optimal", "max_extra_flops": 0.33}),
)
WITHIN_TIME = Policy("optimal", {"recompute": "optimal"}, extra_time=1 / 3)
"""`optimal` of Fig. 7, whose axis is time: what costs few flops may still move many bytes."""

BASELINE = next(policy for policy in POLICIES if policy.label == "packed")
"""What recomputing policies are packed like, too: nothing else differs from them."""

MXNET_SOURCE = (
    "MXNet 1.9.1: 'Total MB allocated' of its static memory planner, mirrors chosen by memonger's "
    "search_plan; single runs of November 2026; fixed figures, not measured here"
)
MXNET_RESNET = {
    "none": (9460, 14042, 28326, 68157, 134053),
    "inplace": (6777, 10109, 20497, 49465, 97391),
    "sharing": (3563, 5229, 10424, 24908, 48872),
    "drop bn+relu": (2867, 4116, 8012, 18874, 36846),
    "√n plan": (1250, 1667, 1957, 2848, 4148),
}
MXNET_LSTM = {
    "none": (5333, 10815, 21781, 43713),
    "inplace": (2872, 5745, 11491, 22983),
    "sharing": (573, 868, 1460, 2642),
    "√n plan": (399, 427, 518, 701),
}
"""MiB of feature maps at `DEPTHS`, and at the first of `LENGTHS`: 256 steps were not planned."""

BESIDE = {
    "none": "none",
    "inplace": "inplace",
    "sharing": "sharing",
    "drop bn+relu": "cheap",
    "√n plan": "sublinear",
}
"""The policy that each of MXNet's columns compares with."""

DEPTHS = (50, 101, 200, 500, 1001)
LENGTHS = (16, 32, 64, 128, 256)
TIMED_DEPTHS = (29, 56, 83, 110, 164)


def figure5(
    policies: Sequence[Policy], depths: Sequence[int] = DEPTHS, image: int = 224, batch: int = 32
) -> dict[str, Any]:
    """Feature maps of residual networks against depth."""
    return {
        "figure": 5,
        "title": "Feature maps of a training step: ResNet",
        "network": f"Bottleneck units in 4 stages, batch {batch}, {image} × {image}, float32",
        "axis": "depth",
        **feature_maps("resnet", "depth", depths, {"image": image, "batch": batch}, policies),
        **mxnet(DEPTHS, MXNET_RESNET),
    }


def figure6(
    policies: Sequence[Policy],
    lengths: Sequence[int] = LENGTHS,
    hidden: int = 1024,
    batch: int = 64,
) -> dict[str, Any]:
    """Feature maps of an unrolled LSTM against its sequence's length."""
    return {
        "figure": 6,
        "title": "Feature maps of a training step: LSTM",
        "network": f"4 layers {hidden} wide, unrolled over time, batch {batch}, float32",
        "axis": "time steps",
        **feature_maps("lstm", "seq_len", lengths, {"hidden": hidden, "batch": batch}, policies),
        **mxnet(LENGTHS, MXNET_LSTM),
    }


def figure7(
    policies: Sequence[Policy],
    depths: Sequence[int] = TIMED_DEPTHS,
    image: int = 32,
    batch: int = 32,
    steps: int = 9,
) -> dict[str, Any]:
    """Measured seconds of a step against depth, for policies that differ in recomputation alone."""
    timed = [BASELINE] + [
        WITHIN_TIME if policy.label == WITHIN_TIME.label else policy
        for policy in policies
        if "recompute" in policy.options
    ]
    rows = []
    for depth in depths:
        settings = {"depth": depth, "image": image, "batch": batch}
        rows += [{"depth": depth, **row} for row in step_times(settings, timed, steps)]
        print(f"depth {depth} measured")
    return {
        "figure": 7,
        "title": "Time of a training step on the CPU",
        "network": f"Pre-activation ResNet, batch {batch}, {image} × {image}, float32, SGD",
        "note": (
            f"Medians of {steps} steps, taken in turn. {BASELINE.label}: nothing computed again;\n"
            f"{WITHIN_TIME.label}: within a third of the step's time by the cost model.\n"
            "Dotted: what the flops that are computed again predict."
        ),
        "axis": "depth",
        "model": "preact_resnet",
        "variable": "depth",
        "settings": {"image": image, "batch": batch},
        "baseline": BASELINE.label,
        "steps": steps,
        "policies": listed(timed),
        "rows": rows,
    }


def feature_maps(
    model: str,
    variable: str,
    sizes: Sequence[int],
    settings: Mapping[str, int],
    policies: Sequence[Policy],
) -> dict[str, Any]:
    """The plans of a network of the zoo at each size under each policy."""
    rows = []
    for size in sizes:
        loss = MODELS[model](**{variable: size}, **settings)
        for policy in policies:
            plan = graphc.plan(loss, optimizer=graphc.optim.SGD(), **policy.options)
            rows.append({variable: size, "policy": policy.label, **planned(plan)})
        print(f"{model} {variable}={size} planned")
    return {
        "model": model,
        "variable": variable,
        "settings": dict(settings),
        "policies": listed(policies),
        "rows": rows,
    }


def step_times(
    settings: Mapping[str, int], policies: Sequence[Policy], steps: int
) -> list[dict[str, Any]]:
    """Seconds of a step of one network under each policy, taken in turn, the first the baseline."""
    loss = MODELS["preact_resnet"](**settings)
    optimizer = graphc.optim.SGD(1e-3)
    chosen = {policy.label: policy.options_for(loss) for policy in policies}
    programs = {
        label: graphc.compile(loss, optimizer=optimizer, **options)
        for label, options in chosen.items()
    }
    baseline = policies[0].label
    feeds = draw_feeds(programs[baseline].graph)
    seconds = step_seconds(
        {label: lambda p=program: p.step(feeds) for label, program in programs.items()}, steps
    )
    return [
        {
            "policy": label,
            "median_seconds": statistics.median(times),
            "fastest_seconds": min(times),
            "slowest_seconds": max(times),
            # Of steps next to each other, so that a slow minute of the machine hits both.
            "ratio": statistics.median(
                mine / plain for mine, plain in zip(times, seconds[baseline], strict=True)
            ),
            **planned(programs[label].plan),
            "extra_time_fraction": programs[label].plan.recomputation.extra_time_fraction,
            "options": chosen[label],
        }
        for label, times in seconds.items()
    ]


def planned(plan: graphc.MemoryPlan) -> dict[str, Any]:
    """What the figures keep of a plan."""
    summary = plan.summary("")
    kept = ("nodes", "feature_map_bytes", "arena_bytes", "extra_flops_fraction", "planning_seconds")
    return {key: summary[key] for key in kept}


def listed(policies: Sequence[Policy]) -> list[dict[str, Any]]:
    return [{"label": policy.label, "options": dict(policy.options)} for policy in policies]


def mxnet(sizes: Sequence[int], columns: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """MXNet's columns as lines beside the policies that they compare with, and what to say."""
    lines = [
        {
            "label": f"MXNet {column}",
            "beside": BESIDE[column],
            "feature_map_bytes": [
                [size, mebibytes << 20] for size, mebibytes in zip(sizes, found, strict=False)
            ],
        }
        for column, found in columns.items()
    ]
    differing = "; ".join(
        f"{column}: {BESIDE[column]}" for column in columns if column != BESIDE[column]
    )
    return {
        "note": (
            "Grey: nothing computed again.\n"
            "Dotted: MXNet 1.9.1 by its own planner, in the colour of what it compares with "
            f"({differing})."
        ),
        "comparison": {"source": MXNET_SOURCE, "lines": lines},
    }


FIGURES: dict[int, Callable[..., dict[str, Any]]] = {5: figure5, 6: figure6, 7: figure7}


def print_figure(content: Mapping[str, Any]) -> None:
    """One line a policy: bytes or time at each size, and the flops added at the largest."""
    print(f"\nFig. {content['figure']}. {content['title']}: {content['network']}")
    table = []
    for policy in content["policies"]:
        found = [row for row in content["rows"] if row["policy"] == policy["label"]]
        cells = {str(row[content["variable"]]): _cell(row) for row in found}
        extra = f"{found[-1]['extra_flops_fraction']:+.1%}"
        table.append({content["axis"]: policy["label"], **cells, "extra flops": extra})
    print_table(table)
    if "baseline" in content:
        noise = max(row["slowest_seconds"] / row["fastest_seconds"] for row in content["rows"])
        print(f"slowest over fastest step of any: {noise:.2f}")


def _cell(row: Mapping[str, Any]) -> str:
    if "ratio" in row:
        return f"{row['median_seconds']:.3f} s ({row['ratio']:.2f})"
    return bytes_label(row["feature_map_bytes"])


def paths(number: int, folder: Path) -> tuple[Path, Path]:
    """The JSON file and the PNG of a figure."""
    return folder / f"figure{number}.json", folder / f"figure{number}.png"


def publish(content: Mapping[str, Any], folder: Path) -> None:
    """Print, write the numbers with their circumstances, and draw what was written."""
    print_figure(content)
    numbers, _ = paths(content["figure"], folder)
    packages = ["graphc", "numpy", "scipy", "matplotlib"]
    write_json(numbers, {**circumstances(packages), **content})
    redraw(content["figure"], folder)


def redraw(number: int, folder: Path) -> None:
    numbers, picture = paths(number, folder)
    draw(json.loads(numbers.read_text()), picture)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--figure", nargs="+", type=int, choices=FIGURES, default=list(FIGURES))
    parser.add_argument("--output", type=Path, default=FOLDER, help="folder for JSON and PNG")
    parser.add_argument("--steps", type=int, default=9, help="timed steps of each, for Fig. 7")
    either = parser.add_mutually_exclusive_group()
    labels = [policy.label for policy in POLICIES]
    lines = f"lines to plan, of {', '.join(labels)}; Fig. 7 adds {BASELINE.label}"
    either.add_argument(
        "--only", nargs="+", choices=labels, default=labels, metavar="LABEL", help=lines
    )
    either.add_argument("--redraw", action="store_true", help="draw the JSON files again")
    options = parser.parse_args(arguments)
    chosen = [policy for policy in POLICIES if policy.label in options.only]
    for number in options.figure:
        if options.redraw:
            redraw(number, options.output)
        else:
            settings = {"steps": options.steps} if number == 7 else {}
            publish(FIGURES[number](chosen, **settings), options.output)
    if options.redraw:
        content = json.loads((RESULTS / "torch_compiled.json").read_text())
        draw_compiled(content, options.output / "torch_compiled.png")


if __name__ == "__main__":
    main()
