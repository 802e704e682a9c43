"""A training step with the options of `graphc fit`, and its predicted bytes and time."""

from __future__ import annotations

import types
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from graphc.devices.device import Device
from graphc.devices.device_memory import DeviceMemory
from graphc.errors import OptionError
from graphc.torch.budget.trace.without_data import Call
from graphc.torch.fit.adapters import add_lora, quantize_base
from graphc.torch.fit.allocator import replay
from graphc.torch.fit.eager import EagerPeak, eager_peak, scaled
from graphc.torch.fit.models import Sizes, Source
from graphc.torch.fit.optimizers import optimizer_of
from graphc.torch.fit.options import FitOptions
from graphc.torch.fit.parameters import blocks_of, groups_of, output_layer
from graphc.torch.fit.recorder import STATES
from graphc.torch.fit.sharding import RankBytes, bytes_per_rank

ALLOCATOR = "allocator rounding"
BUFFERS = "communication buffers"

CHUNK = 1024
"""Rows of logits that a chunked loss computes at a time."""


@dataclass(frozen=True)
class Request:
    """A model, its sizes and options, and the device to fit."""

    source: Source
    sizes: Sizes
    options: FitOptions
    device: Device
    memory: DeviceMemory
    autocast: torch.dtype | None = None


@dataclass(frozen=True)
class Prediction:
    """The bytes of a step by kind at its peak, those of the allocator included, and its time."""

    by_kind_bytes: Mapping[str, int]
    seconds: float
    eager: EagerPeak
    """The recorded step, with the tensors of one rank."""
    recorded: EagerPeak
    """The recorded step, with whole tensors."""
    state_bytes: int
    """The bytes of the optimizer's state on one rank."""

    @property
    def trace(self) -> Sequence[tuple[int, int]]:
        """Allocations and releases of two steps, as in `EagerPeak`."""
        return self.eager.trace

    @property
    def needed_bytes(self) -> int:
        """The bytes that the process takes from the device, without the CUDA context."""
        return sum(self.by_kind_bytes.values())

    @property
    def allocated_bytes(self) -> int:
        """The needed bytes without the rounding of the allocator."""
        return self.needed_bytes - self.by_kind_bytes.get(ALLOCATOR, 0)


def predict(request: Request, recorded: EagerPeak | None = None) -> Prediction:
    """Return the bytes and the time of a training step; raises `TorchError` and `OptionError`.

    `recorded` is the recorded step, with whole tensors, of a request that differs at most in
    `shard` and `ranks`, if it is known.
    """
    options = request.options
    call = call_of(request)
    if recorded is None:
        recorded = eager_peak(
            call,
            partial(optimizer_of, options.optimizer),
            device=request.device,
            autocast=request.autocast,
            is_accumulating=options.accumulate > 1,
        )
    found, buffers = recorded, {}
    if options.shard is not None:
        rank = bytes_per_rank(options.shard, options.ranks, groups_of(call[0]), options.optimizer)
        found = _on_rank(found, rank, options)
        buffers[BUFFERS] = rank.buffer_bytes
    kinds = {**found.by_kind_bytes, **buffers}
    if request.device.kind == "cuda":
        beside = sum(kinds.values()) - found.peak_bytes
        kinds[ALLOCATOR] = reserved_bytes(request, found.trace, beside) - found.peak_bytes
    # The trace of an accumulating step has two micro-batches.
    seconds = found.seconds * (options.accumulate / 2 if options.accumulate > 1 else 1)
    return Prediction(kinds, seconds, found, recorded, kinds[STATES])


def _on_rank(found: EagerPeak, rank: RankBytes, options: FitOptions) -> EagerPeak:
    """Return the peak of a rank, with its shares of parameters, gradients and states.

    The update of a rank that owns a share of the states computes on that share.
    """
    whole: Counter[str] = Counter()
    for key, size in found.recorder.trace:
        whole[found.recorder.kinds[key]] += max(0, size)
    of_rank = {
        "parameters": rank.parameter_bytes,
        "gradients": rank.gradient_bytes,
        STATES: rank.state_bytes,
    }
    shares = {kind: size / whole[kind] for kind, size in of_rank.items() if whole[kind]}
    updated = shares.get(STATES, 1 if options.shard == "ddp" else 1 / options.ranks)

    def share(kind: str, phase: str) -> float:
        return updated if (kind, phase) == ("workspace", "update") else shares.get(kind, 1.0)

    return scaled(found, share)


def needed_for(request: Request, found: Prediction, trace: Sequence[tuple[int, int]]) -> int:
    """Return the needed bytes if the step had another trace, such as that of a larger batch."""
    peak = max(accumulate(size for _, size in found.trace))
    beside = found.allocated_bytes - peak
    if request.device.kind == "cuda":
        return reserved_bytes(request, trace, beside) + beside
    return max(accumulate(size for _, size in trace)) + beside


def reserved_bytes(request: Request, trace: Sequence[tuple[int, int]], beside: int = 0) -> int:
    """Return the bytes that torch's allocator reserves, with `beside` bytes outside the trace.

    At the capacity it frees cached segments; the bytes reserved without a limit count only if the
    trace does not fit even so.
    """
    limited = replay(trace, capacity_bytes=max(1, request.memory.usable_bytes - beside))
    return (replay(trace) if limited.failed_bytes else limited).reserved_bytes


def call_of(request: Request) -> Call:
    """Return the call of a request, on the meta device, with the options that change a module."""
    options = request.options
    module, loss_fn, args, kwargs = request.source.make(request.sizes)
    with torch.device("meta"):
        if options.base is not None:
            quantize_base(module, options.base)
        if options.lora is not None:
            add_lora(module, options.lora)
    if options.checkpoint == "blocks":
        checkpoint_blocks(module)
    if options.chunked_loss:
        module, loss_fn, args, kwargs = _chunked(module, kwargs)
    return module, loss_fn, args, kwargs


def checkpoint_blocks(module: nn.Module) -> None:
    """Recompute each block in the backward pass, in place, as torch.utils.checkpoint does.

    Raises `OptionError` for a module without repeated blocks.
    """
    blocks = blocks_of(module)
    if not blocks:
        raise OptionError("--checkpoint blocks has no effect: the model has no repeated blocks")
    if hasattr(module, "config") and hasattr(module.config, "use_cache"):
        module.config.use_cache = False
    for each in blocks:
        each.forward = types.MethodType(_recomputed(type(each).forward), each)


def _recomputed(forward: Any) -> Any:
    def run(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        return checkpoint(partial(forward, self), *args, use_reentrant=False, **kwargs)

    return run


class _ChunkedLoss(nn.Module):  # type: ignore[misc]
    """A causal language model whose logits exist for `CHUNK` rows at a time."""

    def __init__(self, module: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.module, self.head = module, head

    def forward(self, labels: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        hidden = self.module(**kwargs).logits.flatten(0, 1)
        rows, wanted = hidden.split(CHUNK), labels.flatten().split(CHUNK)
        sums = [
            checkpoint(self._loss, x, t, use_reentrant=False)
            for x, t in zip(rows, wanted, strict=True)
        ]
        return torch.stack(sums).sum() / labels.numel()

    def _loss(self, x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return functional.cross_entropy(self.head(x).float(), labels, reduction="sum")


def _chunked(module: nn.Module, kwargs: Mapping[str, Any]) -> Call:
    head = output_layer(module)
    if head is None or not hasattr(module, "set_output_embeddings") or "labels" not in kwargs:
        raise OptionError(
            "--chunked-loss has no effect: the model is not a causal language model of transformers"
        )
    module.set_output_embeddings(nn.Identity())
    return _ChunkedLoss(module, head), None, (), dict(kwargs)


def with_options(request: Request, **changes: Any) -> Request:
    """Return a request with other options."""
    return replace(request, options=replace(request.options, **changes))
