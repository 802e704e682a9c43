"""The measured parts of run.sh, one a process: facts, selftest, steps NETWORK, peer NETWORK HOW.

Results are written to $OUT, as JSON of the part's name. With $EMULATED, a GPU that is emulated on
the CPU is measured, which checks this script and says nothing of speed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import platform
import shutil
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import graphc
from graphc.cli import main as command
from graphc.models import MODELS
from graphc.runtime.feeds import random_feeds
from graphc.runtime.gpu.step_model import model_step
from graphc.runtime.gpu.timing import launch_times, step_seconds

OUT = Path(os.environ.get("OUT", "."))
EMULATED = bool(os.environ.get("EMULATED"))

GPT2: dict[str, Any] = {"batch": 16, "seq_len": 1024}
RESNET: dict[str, Any] = {"depth": 50, "batch": 64}
if EMULATED:
    GPT2 = {"layers": 1, "width": 64, "heads": 2, "vocab": 97, "batch": 2, "seq_len": 32}
    RESNET = {"depth": 11, "batch": 2, "image": 8}

NETWORKS: dict[str, tuple[Callable[[], Any], Any]] = {
    "gpt2": (
        lambda: MODELS["gpt2"](**GPT2, drop=0.0),
        graphc.optim.Adam(1e-4),
    ),
    "gpt2-dropout": (
        lambda: MODELS["gpt2"](**GPT2, drop=0.1),
        graphc.optim.Adam(1e-4),
    ),
    "resnet50": (
        lambda: (
            MODELS["preact_resnet"](**RESNET)
            if EMULATED
            else MODELS["resnet"](**RESNET, form="common")
        ),
        graphc.optim.Momentum(0.1),
    ),
}
"""The measured networks, in bf16; peers.py has the same networks in torch."""

LESS = {"budget": "2.72MiB" if EMULATED else "4GiB"}
VARIANTS: dict[str, dict[str, dict[str, Any]]] = {
    "gpt2": {
        "default": {},
        "8-bit operands": {"precision": "fp8"},
        "moments in host memory": {"host_states": "moments"},
        "4 GiB by recomputation": LESS,
        "4 GiB by recomputation and copies": {**LESS, "host_budget": "64GiB"},
        "own kernels": {"cudnn": False},
    },
    "gpt2-dropout": {"default": {}},
    "resnet50": {"default": {}},
}
"""The options of each network's programs; bf16 unless they say otherwise."""

TIMED_STEPS = 2 if EMULATED else 30
STEPS = 5
"""Steps before a program is timed: launched, captured, replayed."""


def facts() -> None:
    """Print the GPU, the versions of libraries and tools, and what graphc finds."""
    commands = (
        ["nvidia-smi"],
        [sys.executable, "-m", "pip", "list", "--format", "freeze"],
        ["nvcc", "--version"],
        ["compute-sanitizer", "--version"],
        ["g++", "--version"],
    )
    print(f"Python {platform.python_version()}")
    for each in commands:
        if shutil.which(each[0]):
            print(subprocess.run(each, capture_output=True, text=True, check=False).stdout)
    found = io.StringIO()
    with contextlib.redirect_stdout(found):
        command(["devices", "--json"])
    (OUT / "devices.json").write_text(found.getvalue())
    print(json.dumps(json.loads(found.getvalue()), indent=1))


def selftest() -> int:
    """Run graphc's own checks."""
    return command(["selftest", "--device", "cuda", "--output", str(OUT / "selftest.json")])


def steps(name: str) -> None:
    """Time a network's step and launches, in each variant; a variant that fails hides no other."""
    found: dict[str, Any] = {}
    for label, options in VARIANTS[name].items():
        try:
            found[label] = stepped(name, options)
        except Exception as error:
            traceback.print_exc()
            found[label] = {"problem": f"{type(error).__name__}: {error}"[:400]}
        (OUT / f"steps-{name}.json").write_text(json.dumps(found, indent=1))
        shown = {key: value for key, value in found[label].items() if key != "launches"}
        print(name, label, json.dumps(shown))


def stepped(name: str, options: dict[str, Any]) -> dict[str, Any]:
    """The figures of one program: milliseconds, by op and by launch, beside the modelled ones."""
    network, optimizer = NETWORKS[name]
    began = time.monotonic()
    program = graphc.compile(
        network(), optimizer=optimizer, device="cuda", tuning=OUT / "algorithms.json",
        **{"precision": "bf16", **options},
    )  # fmt: skip
    feeds = {source.name: array for source, array in random_feeds(program.graph, 0).items()}
    bound = time.monotonic() - began
    losses = [float(program.step(feeds)["loss"]) for _ in range(STEPS)]
    model = model_step(program.plan, program.report.calls["cudnn"] > 0)
    launches = launch_times(program)
    by_op: dict[str, float] = {}
    for launch in launches:
        by_op[launch.op] = by_op.get(launch.op, 0.0) + launch.seconds
    return {
        "bind_seconds": bound,
        "losses": losses,
        "calls": dict(program.report.calls),
        "declined": list(program.report.declined),
        "arena_bytes": program.arena_bytes,
        "host_bytes": program.plan.host_bytes,
        "milliseconds": 1e3 * step_seconds(program, TIMED_STEPS),
        "modelled_milliseconds": 1e3 * model.seconds,
        "milliseconds_by_op": {
            op: round(1e3 * seconds, 3)
            for op, seconds in sorted(by_op.items(), key=lambda item: -item[1])
        },
        "modelled_milliseconds_by_op": {
            each.op: round(1e3 * each.seconds, 3) for each in model.by_op if each.calls
        },
        "launches": [
            (
                each.op,
                each.call,
                round(1e6 * each.seconds, 1),
                round(1e6 * model.by_step[each.step], 1),
            )
            for each in launches
        ],
    }


def peer(name: str, how: str) -> None:
    """Time torch on the same network: ``eager`` or ``compile``."""
    import peers

    drop = {"gpt2": 0.0, "gpt2-dropout": 0.1}
    network: Callable[..., Any] = peers.resnet
    sizes, optimizer = RESNET, "sgd"
    if name in drop:
        network, sizes, optimizer = peers.gpt2, {**GPT2, "drop": drop[name]}, "adam"
    milliseconds = peers.milliseconds(network, sizes, optimizer, how)
    (OUT / f"peer-{name}-{how}.json").write_text(json.dumps({"milliseconds": milliseconds}))
    print(f"torch {how}, {name}: {milliseconds:.2f} ms")


def main() -> None:
    if EMULATED:
        from emulated import emulate

        emulate(os.environ.get("INJECT", ""))
    part, *arguments = sys.argv[1:]
    works = {"facts": facts, "selftest": selftest, "steps": steps, "peer": peer}
    sys.exit(works[part](*arguments))


if __name__ == "__main__":
    main()
