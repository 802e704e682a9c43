"""A training step in graphc, torch eager, torch.compile and JAX, and the process that times some.

Run by step_time.py, with a case as JSON: its standard output ends with a line of JSON, see
`Measured`. A process with one framework tells what that framework keeps in memory; one with
several times their steps in turn.
"""

from __future__ import annotations

import argparse
import gc
import importlib
import json
import os
import shutil
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from step_cases import Case, draw_feeds, graphc_program, initial_parameters, network
from turns import Step, measure, timed

import graphc

MODULES = {
    "graphc": (),
    "torch": ("torch_networks",),
    "compiled": ("torch_networks", "torch._dynamo", "torch._inductor.compile_fx"),
    "jax": ("jax_networks",),
}
"""What is imported before anything is measured."""


@dataclass
class Measured:
    """By framework: seconds of a step (the median), of the first one, and of compiling, and why
    there are none; and the most bytes resident, over those before networks were built.
    """

    seconds: dict[str, float] = field(default_factory=dict)
    first_step_seconds: dict[str, float] = field(default_factory=dict)
    compile_seconds: dict[str, float] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    resident_bytes: int | None = None
    arena_bytes: int | None = None


def missing(framework: str) -> str | None:
    """Why a framework cannot be run here."""
    package = "torch" if framework == "compiled" else framework
    if find_spec(package) is None:
        return f"{package} is not installed"
    compiler = os.environ.get("CXX", "g++")
    if framework == "compiled" and shutil.which(compiler) is None:
        return f"inductor needs a C++ compiler, and there is no {compiler}"
    return None


def torch_step(case: Case, graph: graphc.Graph, compiled: bool) -> Step:
    import torch
    import torch_networks

    torch.set_num_threads(len(os.sched_getaffinity(0)))
    torch.manual_seed(0)
    feeds = {name: torch.from_numpy(array) for name, array in draw_feeds(graph).items()}
    made = torch_networks.NETWORKS[case.model](case.sizes)
    return torch_networks.Trainer(made, case.optimizer, feeds, compiled)


def jax_step(case: Case, graph: graphc.Graph) -> Step:
    import jax_networks

    feeds = draw_feeds(graph)
    parameters = initial_parameters(graph)
    return jax_networks.Trainer(case.model, case.sizes, case.optimizer, parameters, feeds)


def graphc_step(case: Case, graph: graphc.Graph, found: Measured) -> Step:
    feeds, program = draw_feeds(graph), graphc_program(case)
    found.arena_bytes = program.arena_bytes
    return lambda: program.step(feeds)


def prepare(framework: str, case: Case, graph: graphc.Graph, found: Measured) -> Step:
    """A step that has not run. All that is done before it, but by torch, counts as compiling."""
    makers: dict[str, Callable[[], Step]] = {
        "graphc": lambda: graphc_step(case, graph, found),
        "torch": lambda: torch_step(case, graph, compiled=False),
        "compiled": lambda: torch_step(case, graph, compiled=True),
        "jax": lambda: jax_step(case, graph),
    }
    step, making = timed(makers[framework])
    if framework in ("graphc", "jax"):
        found.compile_seconds[framework] = making
    return step


def run_twice(framework: str, step: Step, found: Measured) -> None:
    """Time the first step, and the second, which is only about as long as those that follow.

    Inductor compiles in the first, so what that takes longer is its compiling.
    """
    first, second = timed(step)[1], timed(step)[1]
    found.first_step_seconds[framework], found.seconds[framework] = first, second
    if framework == "compiled":
        found.compile_seconds[framework] = max(0.0, first - second)


def measured(case: Case, frameworks: Sequence[str], count: int) -> Measured:
    """Run the frameworks: with `count` steps in turn after one to warm up, or where that is 0, two
    steps of each.
    """
    found = Measured()
    graph = graphc.plan(network(case), training=True).graph
    for framework in frameworks:
        for module in MODULES[framework]:
            importlib.import_module(module)
    gc.collect()
    before = forget_peak()
    steps: dict[str, Step] = {}
    for framework in frameworks:
        try:
            step = prepare(framework, case, graph, found)
            if count == 0:
                run_twice(framework, step, found)
            steps[framework] = step
        except Exception as error:  # one that fails must not take the others' figures with it
            traceback.print_exc()
            found.problems[framework] = f"{type(error).__name__}: {str(error)[:300]}"
    if count:
        found.seconds = measure(steps, count)
    if before is not None:
        found.resident_bytes = own_bytes("VmHWM") - before
    return found


def forget_peak() -> int | None:
    """Make the kernel count this process's peak from here, and return the bytes resident now.

    `getrusage` would do neither: it knows the peak of the process that this one was forked from.
    None where the kernel is not Linux.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return None
    return own_bytes("VmRSS")


def own_bytes(name: str) -> int:
    """A size from the kernel's status of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    (found,) = [line.split()[1] for line in lines if line.startswith(f"{name}:")]
    return int(found) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("case", type=lambda text: Case(**json.loads(text)))
    parser.add_argument("frameworks", nargs="+", choices=MODULES)
    parser.add_argument("--steps", type=int, required=True)
    options = parser.parse_args()
    found: dict[str, Any] = asdict(measured(options.case, options.frameworks, options.steps))
    print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
