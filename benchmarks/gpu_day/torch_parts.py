"""Parts of run.sh for torch: fit CASES, planned CASE, link.

fit measures the peaks of training steps that `graphc fit` predicts, with each allocation of a step.
planned compares a step planned by `graphc.torch` with eager torch and torch's checkpointing. link
times copies between host and GPU. Results are written to $OUT as JSON.
"""

from __future__ import annotations

import gc
import gzip
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
STEPS = 10


def fit(worker: str, workers: str) -> None:
    """Measure each case of a worker; a case that fails hides no other."""
    from fit_cases import CASES

    found, traces = {}, {}
    for name in list(CASES)[int(worker) :: int(workers)]:
        try:
            found[name], traces[name] = measured(name)
        except Exception as error:
            traceback.print_exc()
            found[name] = {"problem": f"{type(error).__name__}: {error}"[:400]}
        print(name, found[name], flush=True)
        (OUT / f"fit-{worker}.json").write_text(json.dumps(found, indent=1))
        gc.collect()
    packed = gzip.compress(json.dumps(traces).encode())
    (OUT / f"fit-traces-{worker}.gz").write_bytes(packed)


def measured(name: str) -> tuple[dict[str, Any], list[tuple[str, int]]]:
    """Return the peaks of a third step, and its events: action and bytes, by address."""
    import torch
    from fit_cases import CASES, loss_of, on_gpu, optimizer_of

    torch.cuda.empty_cache()
    left = torch.cuda.memory_allocated()
    call, request = on_gpu(CASES[name])
    optimizer = optimizer_of(request, call[0])

    def step() -> None:
        for _ in range(min(2, request.options.accumulate)):
            loss_of(call, request).backward()
        optimizer.step()
        optimizer.zero_grad()

    began = time.monotonic()
    resident = torch.cuda.memory_allocated() - left
    for _ in range(2):
        step()
    torch.cuda.synchronize()
    kept = torch.cuda.memory_allocated() - left
    reserved = torch.cuda.max_memory_reserved()
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.memory._record_memory_history("all", context=None, max_entries=200_000)
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    step()
    end.record()
    torch.cuda.synchronize()
    events = torch.cuda.memory._snapshot()["device_traces"][0]
    torch.cuda.memory._record_memory_history(None)
    stats = torch.cuda.memory_stats()
    figures = {
        "allocated_bytes": stats["allocated_bytes.all.peak"] - left,
        "requested_bytes": stats["requested_bytes.all.peak"],
        "reserved_bytes": max(reserved, stats["reserved_bytes.all.peak"]),
        "resident_bytes": resident,
        "kept_bytes": kept,
        "left_bytes": left,
        "milliseconds": start.elapsed_time(end),
        "seconds_of_first_steps": time.monotonic() - began,
    }
    return figures, [(each["action"], each["addr"], each["size"]) for each in events]


def planned(name: str) -> None:
    """Compare a planned step with eager and checkpointed ones: bytes, milliseconds and bits."""
    import torch
    from fit_cases import CASES, loss_of, on_gpu

    import graphc

    found: dict[str, Any] = {}
    path = OUT / f"planned-{name.replace(' ', '-')}.json"

    def keep(**figures: Any) -> None:
        found.update(figures)
        path.write_text(json.dumps(found, indent=1))
        print(name, figures, flush=True)

    call, request = on_gpu(CASES[name])
    module, loss_fn, args, kwargs = call
    half = request.autocast
    precision = torch.autocast("cuda", half or torch.bfloat16, enabled=half is not None)

    def run(called: Callable[..., Any]) -> None:
        with precision:
            output = called(*args, **kwargs)
            output = output if isinstance(output, torch.Tensor) else output.loss
        output.backward()

    def timed(step: Callable[[], None]) -> dict[str, Any]:
        for _ in range(3):
            module.zero_grad()
            step()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        times = []
        for _ in range(STEPS):
            module.zero_grad()
            torch.cuda.synchronize()
            began = time.perf_counter()
            step()
            torch.cuda.synchronize()
            times.append(1e3 * (time.perf_counter() - began))
        return {"peak_bytes": torch.cuda.max_memory_allocated(),
                "milliseconds": statistics.median(times)}  # fmt: skip

    keep(eager=timed(lambda: loss_of(call, request).backward()))
    least: dict[str, Any] = {"max_extra_time": 0.0}
    if hasattr(module, "gradient_checkpointing_enable"):
        module.gradient_checkpointing_enable({"use_reentrant": False})
        keep(checkpointing=timed(lambda: loss_of(call, request).backward()))
        module.gradient_checkpointing_disable()
    options: dict[str, Any] = {"kwargs": kwargs, "autocast": half}
    options |= {"loss_fn": loss_fn} if loss_fn is not None else {"return_outputs": False}
    goals: dict[str, Any] = {"no recompute": least, "knee": {}}
    if "checkpointing" in found:
        goals["bytes of checkpointing"] = {"budget": None}
    for label, goal in goals.items():
        began = time.monotonic()
        try:
            if "budget" in goal:
                most = found["checkpointing"]["peak_bytes"]
                goal = {"budget": max(most, found["knee"].get("least_bytes", 0))}
            module.zero_grad()
            gc.collect()
            step = graphc.torch.plan(module, args, **options, **goal)
            report = step.report
            figures = {
                "planning_seconds": time.monotonic() - began,
                "planned_bytes": report.peak_bytes,
                "least_bytes": report.least_bytes,
                "bound_bytes": report.bound_bytes,
                "plain_bytes": report.plain_bytes,
                "extra_time": report.extra_time,
            }
            keep(**{label: figures})
            verified = step.verify()
            figures["verified"] = str(verified)[:600]
            figures.update(timed(lambda step=step: run(step)))  # type: ignore[misc]
            keep(**{label: figures})
        except Exception as error:
            traceback.print_exc()
            keep(
                **{
                    label: {
                        **found.get(label, {}),
                        "problem": f"{type(error).__name__}: {error}"[:900],
                    }
                }
            )
        step = None


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
    products = lambda: [a @ a for _ in range(8)]  # noqa: E731
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
    {"fit": fit, "planned": planned, "link": link}[part](*arguments)


if __name__ == "__main__":
    main()
