"""Parts of run.sh for torch: fit CASES, planned CASE, compiled CASE, link.

fit measures the peaks of training steps that `graphc fit` predicts, with each allocation of a step.
planned compares a step planned by `graphc.torch` with eager torch and torch's checkpointing, and
compiled such steps with those of torch.compile. link times copies between host and GPU. Results are
written to $OUT as JSON.
"""

from __future__ import annotations

import gc
import gzip
import inspect
import json
import os
import statistics
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

OUT = Path(os.environ.get("OUT", "."))
MIB = 2**20
WARM_STEPS, STEPS = 3, 10


def fit(worker: str, workers: str) -> None:
    """Measure each case of a worker; a case that fails hides no other."""
    from fit_cases import CASES

    found, events = {}, {}
    for name in list(CASES)[int(worker) :: int(workers)]:
        try:
            found[name], events[name] = measured(name)
        except Exception as error:
            traceback.print_exc()
            found[name] = problem(error)
        print(name, found[name], flush=True)
        (OUT / f"fit-{worker}.json").write_text(json.dumps(found, indent=1))
        gc.collect()
    packed = gzip.compress(json.dumps(events).encode())
    (OUT / f"fit-events-{worker}.gz").write_bytes(packed)


def measured(name: str) -> tuple[dict[str, Any], list[tuple[str, int, int]]]:
    """Return the peaks of three steps, and the allocator's events of the third.

    An event is an action, an address and bytes.
    """
    import torch
    from fit_cases import CASES, loss_of, on_gpu, optimizer_of

    torch._C._cuda_clearCublasWorkspaces()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    call, request = on_gpu(CASES[name])
    optimizer = optimizer_of(request, call[0])

    def step() -> None:
        for _ in range(min(2, request.options.accumulate)):
            loss_of(call, request).backward()
        optimizer.step()
        optimizer.zero_grad()

    for _ in range(2):
        step()
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=200_000)
    step()
    torch.cuda.synchronize()
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(None)
    figures = {
        "allocated_bytes": torch.cuda.max_memory_allocated(),
        "reserved_bytes": torch.cuda.max_memory_reserved(),
    }
    return figures, [(each["action"], each["addr"], each["size"]) for each in events]


def planned(name: str) -> None:
    """Compare planned steps with eager and checkpointed ones: bytes, milliseconds and bits."""
    from fit_cases import CASES, loss_of, on_gpu

    found, keep = noted(name)
    call, request = on_gpu(CASES[name])
    module = call[0]

    def eager() -> None:
        loss_of(call, request).backward()

    keep("eager", timed(module, eager))
    goals: dict[str, dict[str, Any]] = {
        "no recompute": {"max_extra_time": 0.0},
        "knee": {"budget": "knee"},
    }
    if hasattr(module, "gradient_checkpointing_enable"):
        module.gradient_checkpointing_enable({"use_reentrant": False})
        keep("checkpointing", timed(module, eager))
        module.gradient_checkpointing_disable()
        least = found["checkpointing"]["peak_bytes"]
        goals["bytes of checkpointing"] = {"budget": least}
        goals["bytes of checkpointing, copies"] = {"budget": least, "host_budget": "64GiB"}
    plan_each(call, request, goals, keep)
    if "attention_mask" in inspect.signature(module.forward).parameters:
        label = "no recompute, mask of ones"
        try:
            masked = with_mask_of_ones(call)
            keep("eager, mask of ones", timed(module, lambda: loss_of(masked, request).backward()))
            plan(masked, request, goals["no recompute"], lambda figures: keep(label, figures))
        except Exception as error:
            traceback.print_exc()
            keep(label, problem(error))


def compiled(name: str) -> None:
    """Compare compiled steps of graphc and of torch.compile, with and without checkpointing."""
    import torch
    from fit_cases import CASES, loss_of, on_gpu

    found, keep = noted(f"{name} compiled")
    call, request = on_gpu(CASES[name])
    module = call[0]

    def compile_step(label: str) -> None:
        torch.compiler.reset()
        own = (torch.compile(module), *call[1:])
        keep(label, timed(module, lambda: loss_of(own, request).backward()))

    compile_step("torch.compile")
    goals: dict[str, dict[str, Any]] = {"no recompute, compiled": {"max_extra_time": 0.0}}
    if hasattr(module, "gradient_checkpointing_enable"):
        module.gradient_checkpointing_enable({"use_reentrant": False})
        compile_step("checkpointing, torch.compile")
        module.gradient_checkpointing_disable()
        least = found["checkpointing, torch.compile"]["peak_bytes"]
        goals["bytes of checkpointing, compiled"] = {"budget": least}
    torch.compiler.reset()
    plan_each(call, request, {label: {**g, "compile": True} for label, g in goals.items()}, keep)


def noted(name: str) -> tuple[dict[str, Any], Callable[[str, dict[str, Any]], None]]:
    """Return the figures of a part by label, and what adds to them and writes the file."""
    found: dict[str, Any] = {}
    path = OUT / f"planned-{name.replace(' ', '-')}.json"

    def keep(label: str, figures: dict[str, Any]) -> None:
        found[label] = {**found.get(label, {}), **figures}
        path.write_text(json.dumps(found, indent=1))
        print(name, label, found[label], flush=True)

    return found, keep


def plan_each(
    call: Any, request: Any, goals: dict[str, dict[str, Any]], keep: Callable[..., None]
) -> None:
    """Plan and measure a step for each goal; one that fails hides no other."""
    for label, goal in goals.items():
        try:
            plan(call, request, goal, lambda figures, label=label: keep(label, figures))
        except Exception as error:
            traceback.print_exc()
            keep(label, problem(error))


def with_mask_of_ones(call: Any) -> Any:
    """Return a call whose mask of attention hides nothing."""
    import torch

    module, loss_fn, args, kwargs = call
    tokens = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
    return module, loss_fn, args, {**kwargs, "attention_mask": torch.ones_like(tokens)}


def plan(call: Any, request: Any, goal: dict[str, Any], keep: Callable[..., None]) -> None:
    """Plan, verify and time the steps of a call."""
    import graphc

    module, loss_fn, args, kwargs = call
    module.zero_grad()
    gc.collect()
    options = {"loss_fn": loss_fn} if loss_fn is not None else {"return_outputs": False}
    began = time.monotonic()
    step = graphc.torch.plan(
        module, args, kwargs=kwargs, autocast=request.autocast, **options, **goal
    )
    report = step.report
    keep(
        {
            "planning_seconds": time.monotonic() - began,
            "planned_bytes": report.peak_bytes,
            "least_bytes": report.least_bytes,
            "bound_bytes": report.bound_bytes,
            "plain_bytes": report.plain_bytes,
            "extra_time": report.extra_time,
        }
    )
    keep({"verified": str(step.verify())})

    def run() -> None:
        output = step(*args, **kwargs)
        getattr(output, "loss", output).backward()

    keep(timed(module, run))


def timed(module: Any, step: Callable[[], None]) -> dict[str, Any]:
    """Return the median milliseconds and the peak bytes of forward and backward passes."""
    import torch

    times = []
    for number in range(WARM_STEPS + STEPS):
        if number == WARM_STEPS:
            torch.cuda.reset_peak_memory_stats()
        module.zero_grad()
        torch.cuda.synchronize()
        began = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - began))
    return {
        "peak_bytes": torch.cuda.max_memory_allocated(),
        "milliseconds": statistics.median(times[WARM_STEPS:]),
    }


def problem(error: Exception) -> dict[str, str]:
    """Return the figures of a part that failed."""
    return {"problem": f"{type(error).__name__}: {error}"[:900]}


def link() -> None:
    """Time copies between pinned host memory and the GPU: each way, both, and in a graph."""
    import torch

    found = {}
    up, down = torch.cuda.Stream(), torch.cuda.Stream()

    def seconds(copy: Callable[[], None], runs: int = 5) -> float:
        copy()
        torch.cuda.synchronize()
        times = []
        for _ in range(runs):
            began = time.perf_counter()
            copy()
            torch.cuda.synchronize()
            times.append(time.perf_counter() - began)
        return statistics.median(times)

    for size in (MIB // 16, MIB, 16 * MIB, 256 * MIB):
        host = [torch.empty(size, dtype=torch.uint8, pin_memory=True) for _ in range(2)]
        device = [torch.empty(size, dtype=torch.uint8, device="cuda") for _ in range(2)]

        def to_device(host: Any = host, device: Any = device) -> None:
            with torch.cuda.stream(up):
                device[0].copy_(host[0], non_blocking=True)

        def to_host(host: Any = host, device: Any = device) -> None:
            with torch.cuda.stream(down):
                host[1].copy_(device[1], non_blocking=True)

        def both(to_device: Any = to_device, to_host: Any = to_host) -> None:
            to_device()
            to_host()

        found[str(size)] = {
            "to_device_seconds": seconds(to_device),
            "to_host_seconds": seconds(to_host),
            "both_seconds": seconds(both),
        }
    a = torch.randn(8192, 8192, dtype=torch.bfloat16, device="cuda")

    def products() -> None:
        for _ in range(8):
            a @ a

    alone = seconds(products)

    def beside() -> None:
        both()
        products()

    found["products"] = {"alone_seconds": alone, "beside_copies_seconds": seconds(beside)}
    (OUT / "link.json").write_text(json.dumps(found, indent=1))
    print(json.dumps(found, indent=1))


def main() -> None:
    warnings.simplefilter("ignore")
    part, *arguments = sys.argv[1:]
    {"fit": fit, "planned": planned, "compiled": compiled, "link": link}[part](*arguments)


if __name__ == "__main__":
    main()
