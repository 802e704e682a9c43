"""Training steps on a GPU: graphc under its strategies, torch and JAX, measured in one run.

First tests/on_gpu are run, then graphc on each network in each precision, then the others, as long
as the minutes last. Milliseconds are medians of device events after a warm-up, of a step whose
inputs lie on the device already, for all alike. For graphc stand beside: those of `Program.step`,
with its copies from and to the host ("overlapped": of `Program.steps` with slots), what the model
of docs/gpu.md says, how many calls of each kind a step makes, and what libraries declined. Bytes
are what the driver has less than before. What cuBLASLt and cuDNN have chosen is written beside the
figures. Needs no network.
Run: python benchmarks/gpu.py [--minutes M] [--only LABEL ...]
"""

from __future__ import annotations

import argparse
import gc
import itertools
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import gpu_peers
from report import circumstances, output_argument, print_table, write_json

import graphc
from graphc.errors import DependencyError
from graphc.ir.graph import Input, ancestors
from graphc.models import MODELS
from graphc.runtime.feeds import random_feeds
from graphc.runtime.gpu.cuda import CudaDevice
from graphc.runtime.gpu.cudnn import Cudnn, load_cudnn
from graphc.runtime.gpu.device import cuda_versions, find_gpu
from graphc.runtime.gpu.step_model import model_step

WARM_STEPS, TIMED_STEPS = 4, 15
TEST_SECONDS = 180
LONGEST_SECONDS = 20.0
"""Of the timed steps of one line."""

CONSTANT = graphc.optim.Schedule(1e-3, 10**6, floor=1e-3, form="constant")
"""A learning rate that is computed on the device, and no input."""

SHOWN = (
    "network", "precision", "system", "milliseconds", "with_host_copies", "modelled_milliseconds",
    "peak_bytes", "planned_bytes", "problem",
)  # fmt: skip
"""What the table shows of a line; the file has all."""

OPTIMIZERS = {"sgd": graphc.optim.SGD, "adam": graphc.optim.Adam}


@dataclass(frozen=True)
class Case:
    """A network of the zoo at its sizes, and in which precisions it is run."""

    label: str
    model: str
    sizes: Mapping[str, Any]
    precisions: tuple[str, ...]
    optimizer: str = "sgd"
    peer: Callable[..., Any] | None = None
    strategies: tuple[str, ...] = (
        "none", "own kernels", "overlapped", "cheap", "sublinear", "half",
    )  # fmt: skip


def _resnet(depth: int, batch: int, precisions: tuple[str, ...], **options: Any) -> Case:
    sizes = {"depth": depth, "batch": batch}
    label = f"resnet {depth}, batch {batch}"
    return Case(label, "resnet", sizes, precisions, peer=gpu_peers.resnet, **options)


def _gpt2(batch: int, seq_len: int, precisions: tuple[str, ...], attention: str = "fused") -> Case:
    sizes = {"batch": batch, "seq_len": seq_len, "drop": 0.0, "attention": attention}
    label = f"gpt2 small, batch {batch}, T={seq_len}, {attention} attention"
    peer = gpu_peers.gpt2 if attention == "fused" else None
    return Case(label, "gpt2", sizes, precisions, "adam", peer)


CASES = (
    _resnet(50, 32, ("fp32", "tf32", "bf16")),
    _gpt2(16, 1024, ("bf16",)),
    _gpt2(4, 512, ("fp32", "tf32", "bf16"), "composed"),
    _resnet(1001, 32, ("tf32",), strategies=("sublinear", "least")),
    Case("lstm, T=64", "lstm", {"seq_len": 64}, ("fp32", "tf32"), peer=gpu_peers.lstm),
    Case("mlp 50 x 1024, batch 512", "mlp", {"layers": 50, "hidden": 1024, "batch": 512},
         ("fp32", "tf32"), "adam", gpu_peers.mlp),
    _resnet(50, 256, ("tf32", "bf16", "fp32")),
    _gpt2(16, 1024, ("bf16",), "composed"),
    _gpt2(32, 1024, ("bf16",)),
)  # fmt: skip


@dataclass
class Line:
    """One system on one case; `problem` says why there are no figures."""

    network: str
    precision: str
    system: str
    milliseconds: float | None = None
    with_host_copies: float | None = None
    """Milliseconds of a step that is fed from the host and gives outputs, inputs among them."""
    samples_per_second: float | None = None
    peak_bytes: int | None = None
    planned_bytes: int | None = None
    modelled_milliseconds: float | None = None
    calls: Mapping[str, int] | None = None
    declined: Sequence[str] = ()
    problem: str | None = None


@dataclass(frozen=True)
class Made:
    """A step on inputs that lie on the device, and the stream that it runs on; of graphc's the
    program, and the same step from and to the host."""

    step: Callable[[], Any]
    stream: Any
    program: graphc.Program | None = None
    from_host: Callable[[], Any] | None = None


@dataclass(frozen=True)
class Job:
    """What fills in a line."""

    line: Line
    batch: int
    make: Callable[[], Made]


class Gpu:
    """What is measured by the device itself."""

    def __init__(self) -> None:
        import cupy

        self.cupy, self.device = cupy, CudaDevice(find_gpu(0))

    def free_bytes(self) -> int:
        """What the driver has left, after everything that is not used has been given back."""
        gc.collect()
        gpu_peers.give_back()
        self.cupy.cuda.runtime.deviceSynchronize()
        return self.device.free_bytes()

    def milliseconds(self, step: Callable[[], Any], stream: Any) -> float:
        """The median time between two events around a step on its stream."""
        events = [self.cupy.cuda.Event() for _ in range(2)]
        found: list[float] = []
        started = time.monotonic()
        while len(found) < TIMED_STEPS and time.monotonic() < started + LONGEST_SECONDS:
            events[0].record(stream)
            step()
            events[1].record(stream)
            events[1].synchronize()
            found.append(self.cupy.cuda.get_elapsed_time(*events))
        return statistics.median(found)


def measure(job: Job, gpu: Gpu) -> None:
    """Fill in the line of a job."""
    line = job.line
    try:
        before = gpu.free_bytes()
        made = job.make()
        if made.program is not None:
            describe(line, made.program)
        for _ in range(WARM_STEPS):
            (made.from_host or made.step)()
        if made.from_host is not None:
            line.with_host_copies = gpu.milliseconds(made.from_host, made.stream)
        line.milliseconds = gpu.milliseconds(made.step, made.stream)
        line.samples_per_second = 1e3 * job.batch / line.milliseconds
        line.peak_bytes = before - gpu.device.free_bytes()
    except Exception as error:  # one that fails must not take the others' figures with it
        traceback.print_exc()
        line.problem = f"{type(error).__name__}: {str(error)[:300]}"


def describe(line: Line, program: graphc.Program) -> None:
    """Enter what is known of a program before it runs."""
    report = program.report
    line.planned_bytes = program.arena_bytes
    line.calls, line.declined = dict(report.calls), list(report.declined)
    modelled = model_step(program.plan, with_cudnn=report.calls["cudnn"] > 0)
    line.modelled_milliseconds = 1e3 * modelled.seconds


def has_cudnn() -> bool:
    """Whether it is installed, and finds a GPU that it can use."""
    try:
        Cudnn(load_cudnn()).close()
    except DependencyError:
        return False
    return True


def graphc_step(case: Case, precision: str, strategy: str, records: Path) -> Made:
    """A bound program's step, and that step on the feeds that lie in its arena.

    Inputs are outputs, too, so that they are there at the end of a step as they were fed.
    """
    network = MODELS[case.model](**case.sizes)
    read = (value for node in ancestors([network]) for value in node.inputs)
    kept = {f"fed/{value.name}": value for value in read if isinstance(value, Input)}
    options: dict[str, Any] = {
        "outputs": kept,
        "optimizer": OPTIMIZERS[case.optimizer](CONSTANT),
        "precision": precision,
    }
    if strategy in ("half", "least"):
        plain = graphc.plan(network, device="cuda", **options)
        options |= (
            {"max_extra_flops": 1.0}
            if strategy == "least"
            else {"budget": plain.state_bytes + (plain.arena_bytes - plain.state_bytes) // 2}
        )
    elif strategy == "overlapped":
        options["overlap_copies"] = True
    elif strategy != "own kernels":
        options["recompute"] = strategy
    is_asked = strategy != "own kernels" and has_cudnn()
    engines = records / "gpu_engines.json" if is_asked else False
    tuning = records / "gpu_algorithms.json"
    program = graphc.compile(network, device="cuda", tuning=tuning, cudnn=engines, **options)
    feeds = {s.name: array for s, array in random_feeds(program.graph, 0).items()}
    backend: Any = program._backend
    whole: Callable[[], Any] = partial(program.step, feeds)
    if strategy == "overlapped":
        whole = partial(next, program.steps(itertools.repeat(feeds)))
    return Made(backend.repeat, backend.stream, program, whole)


def peer_step(make: Callable[[], tuple[Callable[[], Any], Any, None]]) -> Made:
    """A peer's step, whose inputs lie on the device."""
    step, stream, _ = make()
    return Made(step, stream)


def jobs(cases: Sequence[Case], records: Path) -> Iterator[Job]:
    """All lines, in the order in which they matter: graphc's, then its peers'."""
    chosen = [(case, precision) for case in cases for precision in case.precisions]
    for case, precision in chosen:
        for strategy in case.strategies:
            line = Line(case.label, precision, f"graphc {strategy}")
            make = partial(graphc_step, case, precision, strategy, records)
            yield Job(line, case.sizes.get("batch", 64), make)
    for case, precision in chosen:
        sizes = {name: size for name, size in case.sizes.items() if name != "attention"}
        for peer, other in gpu_peers.systems(case.peer, sizes, case.optimizer, precision):
            line = Line(case.label, precision, peer)
            yield Job(line, case.sizes.get("batch", 64), partial(peer_step, other))


def verified() -> str:
    """The last line of tests/on_gpu."""
    folder = Path(__file__).parent.parent
    options = ["-q", "-m", "gpu", "-x", "--no-header"]
    command = [sys.executable, "-m", "pytest", "tests/on_gpu", *options]
    try:
        found = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, check=False, timeout=TEST_SECONDS
        )
    except subprocess.TimeoutExpired:
        return f"not done after {TEST_SECONDS} seconds"
    said = (found.stdout.strip() or found.stderr.strip() or "nothing").splitlines()
    return said[-1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--minutes", type=float, default=7.5, help="after these, lines are left out"
    )
    parser.add_argument("--only", nargs="*", default=(), help="parts of labels of networks")
    parser.add_argument("--no-tests", action="store_true", help="do not run tests/on_gpu first")
    output_argument(parser, "gpu.json")
    options = parser.parse_args()
    deadline = time.monotonic() + 60 * options.minutes
    gpu = Gpu()
    chosen = tuple(c for c in CASES if not options.only or any(o in c.label for o in options.only))
    tests = None if options.no_tests else verified()
    print(f"tests/on_gpu: {tests}")
    found: list[Line] = []
    packages = ["graphc", "numpy", "cupy-cuda13x", "nvidia-cublas", "torch", "jax"]
    heading = {
        **circumstances(packages), "gpu": gpu.device.gpu.name, "cuda": cuda_versions(),
        "tests": tests,
    }  # fmt: skip
    for job in jobs(chosen, Path(options.output).parent):
        if time.monotonic() < deadline:
            measure(job, gpu)
        else:
            job.line.problem = "no time was left"
        found.append(job.line)
        rows = [vars(line) for line in found]
        write_json(options.output, {**heading, "rows": rows})  # what fails later takes nothing away
    print_table([{k: v for k, v in vars(line).items() if k in SHOWN} for line in found])


if __name__ == "__main__":
    main()
