"""Answers the question of `graphc fit` for a model, its sizes, options and device."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from graphc.byte_sizes import format_bytes
from graphc.devices.device import Device
from graphc.devices.device_memory import DeviceMemory
from graphc.errors import GraphcError, OptionError, or_all, quoted
from graphc.torch.fit.changes import cheapest, least_bytes, with_supported_dtypes
from graphc.torch.fit.configurations import from_config
from graphc.torch.fit.largest import largest_batch, largest_seq
from graphc.torch.fit.models import Sizes, Source, from_name
from graphc.torch.fit.options import FitOptions
from graphc.torch.fit.plans import compiled_peaks, planned_peaks
from graphc.torch.fit.report import FitReport
from graphc.torch.fit.step import Request, predict, with_options

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "half": "float16"}
"""Other names of dtypes."""


def source_of(model: str, task: str | None) -> Source:
    """Return the source of a configuration or a name; raises `OptionError` for unknown ones."""
    path = Path(model)
    if path.is_dir() or path.suffix == ".json":
        return from_config(path, task)
    return from_name(model)


def request_of(
    source: Source,
    options: FitOptions,
    device: Device,
    memory: DeviceMemory,
    *,
    batch: int = 1,
    seq: int | None = None,
    image: int | None = None,
    dtype: str = "float32",
    autocast: str | None = None,
) -> Request:
    """Return a request; raises `OptionError` for impossible sizes and dtypes."""
    dtype, autocast = SHORT.get(dtype, dtype), SHORT.get(autocast or "", autocast)
    for name in (dtype, autocast):
        if name is not None and name not in DTYPES:
            raise OptionError(f"unknown dtype {quoted(name)}; {or_all(name, DTYPES)}")
    if autocast == "float32" or (autocast and dtype != "float32"):
        raise OptionError(
            f"--autocast {autocast} has no effect on --dtype {dtype}; autocast computes a float32 "
            "module in bfloat16 or float16"
        )
    if options.attention == "flash" and dtype == "float32" and autocast is None:
        raise OptionError(
            "--attention flash computes in 16 bits; add --dtype bfloat16 or --autocast bfloat16"
        )
    for flag, size in (("--batch", batch), ("--seq", seq), ("--image", image)):
        if size is not None and size < 1:
            raise OptionError(f"{flag} must be at least 1, got {size}")
    if seq is not None and source.longest is not None and seq > source.longest:
        raise OptionError(f"--seq {seq} exceeds the {source.longest} positions of the model")
    if not options.optimizer:
        options = replace(options, optimizer=source.optimizer)
    sizes = Sizes(batch, seq, image, DTYPES[dtype], options.attention)
    return Request(source, sizes, options, device, memory, DTYPES[autocast] if autocast else None)


def answer(model: str, request: Request, *, plans: bool, kernels: bool = False) -> FitReport:
    """Return the report of a request; with `plans`, also the peaks of aot_eager and of a plan, and
    with `kernels`, those after inductor has fused them.

    Steps on several ranks are not planned, nor are steps that no plan can make fit.
    """
    plain = with_options(request, checkpoint="none")
    if request.options.checkpoint == "graphc":
        return _answer_of_plan(model, plain)
    found, capacity = predict(request), request.memory.usable_bytes
    fits, least = found.needed_bytes <= capacity, least_bytes(request, found)
    may_fit = fits or least <= capacity
    planned, error = None, ""
    is_planned = plans and request.options.shard is None
    if is_planned and not may_fit:
        error = (
            f"parameters, gradients and optimizer states alone need {format_bytes(least)}, but "
            f"the device has {format_bytes(capacity)} for tensors"
        )
    elif is_planned:
        try:
            step = found if plain == request else predict(plain)
            planned = planned_peaks(request, step, found.allocated_bytes)
            if kernels:
                planned = replace(planned, compiled=compiled_peaks(request, step))
        except GraphcError as raised:
            error = str(raised)
    return FitReport(
        model,
        request.memory,
        found,
        largest_batch(request, found) if may_fit else 0,
        largest_seq(request, found) if may_fit else 0,
        found.allocated_bytes,
        planned,
        error,
        [] if fits else cheapest(request, found, planned),
        _assumed(request),
        _ignored(request),
        _notes(request),
    )


def _notes(request: Request) -> list[str]:
    """Return a sentence if the device computes in a dtype of the request only by other means."""
    _, flags = with_supported_dtypes(request)
    name = request.device.name
    return [f"{name} has no bfloat16, so torch emulates it slowly; use {flags}"] if flags else []


def _ignored(request: Request) -> list[str]:
    """Return the entries of the configuration that the step does not follow, and the options."""
    ignored, found = request.source.ignored, []
    dtype = ignored.get("dtype")
    if dtype is not None and DTYPES.get(dtype) != request.sizes.dtype:
        found.append(f"dtype {dtype}: see --dtype")
    if "quantization_config" in ignored and request.options.base is None:
        told = ignored["quantization_config"]
        found.append(f"quantization_config: {told}, see --base")
    return found


def _assumed(request: Request) -> dict[str, object]:
    """Return the sizes and options that a request has by default or by choice."""
    sizes = request.sizes
    name_of = {dtype: name for name, dtype in DTYPES.items()}
    return {
        "batch": sizes.batch if request.source.has_batch else None,
        "length": sizes.seq or request.source.seq,
        "image": sizes.image,
        "dtype": name_of[sizes.dtype],
        "autocast": request.autocast and name_of[request.autocast],
        "optimizer": request.options.optimizer,
        "task": request.source.task,
    }


def _answer_of_plan(model: str, request: Request) -> FitReport:
    """Return the report of the step as graphc plans it within the memory.

    Changes are those of the step without a plan.
    """
    eager = predict(request)
    planned = planned_peaks(request, eager, eager.allocated_bytes)
    found = planned.prediction
    fits = found.needed_bytes <= request.memory.usable_bytes
    changes = [] if fits else cheapest(request, eager, None)
    return FitReport(
        model, request.memory, found, None, None, eager.allocated_bytes, planned, "", changes,
        _assumed(request), _ignored(request), _notes(request),
    )  # fmt: skip
