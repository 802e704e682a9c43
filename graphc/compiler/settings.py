"""Options recorded in a plan."""

from __future__ import annotations

from typing import Any

from graphc.compiler.options import PlanningOptions
from graphc.plans.cost_model import CostModel


def settings_of(options: PlanningOptions) -> dict[str, Any]:
    """Return the options that a plan records: the optimizer, and options that are not defaults."""
    settings: dict[str, Any] = {}
    optimizer = options.trained_by
    if optimizer is not None:
        has_fields = hasattr(optimizer, "__dataclass_fields__")
        settings["optimizer"] = repr(optimizer) if has_fields else type(optimizer).__name__
    if options.clip_norm is not None:
        settings["clip_norm"] = float(options.clip_norm)
    if options.accumulate > 1:
        settings["accumulate"] = int(options.accumulate)
    if options.precision != "fp32":
        settings["precision"] = options.precision
    if options.cost_model != CostModel(options.planned_for, tf32=options.precision == "tf32"):
        settings["costs"] = str(options.cost_model)
    if not options.reorder:
        settings["reorder"] = False
    if options.planned_for.kernels == "numpy":
        settings["kernels"] = "numpy"
    if options.fuses != options.target.fuses:
        settings["fuse"] = options.fuses
    if options.trains and options.chunks_losses != options.target.chunks_losses:
        settings["chunk_losses"] = options.chunks_losses
    if options.overlap_copies:
        settings["overlap_copies"] = True
    if options.has_host_states:
        settings["host_states"] = options.host_states
    if options.ranks > 1:
        settings["ranks"] = int(options.ranks)
        if options.shard != "none":
            settings["shard"] = options.shard
        if options.sync_norm:
            settings["sync_norm"] = True
    if options.streams > 1:
        settings["streams"] = int(options.streams)
    return settings
