"""Partitioners of torch by name, with the fraction of activation memory that they may use."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

from torch import fx

from graphc.errors import OptionError, TorchError, choose, quoted
from graphc.torch.private import (
    default_partition,
    functorch_config,
    has_recomputable_ops,
    min_cut_partition,
    run_and_save_rng_state,
    run_with_rng_state,
)

Partitioner = Callable[..., tuple[fx.GraphModule, fx.GraphModule]]
"""A ``partition_fn`` of ``aot_autograd``."""


def checkpoint_partition(module: fx.GraphModule, *args: Any, **kwargs: Any) -> Any:
    """Recompute what ``torch.utils.checkpoint`` marks in the module, and nothing else."""
    if not has_recomputable_ops(module):
        raise TorchError(
            "the module does not call torch.utils.checkpoint, so the partition 'checkpoint' would "
            "recompute nothing; call it in the module, or choose min-cut"
        )
    return default_partition(module, *args, **kwargs)


PARTITIONERS: dict[str, Partitioner] = {
    "min-cut": min_cut_partition,
    "default": default_partition,
    "checkpoint": checkpoint_partition,
}


def add_values(graph: fx.Graph, fake_mode: Any) -> None:
    """Add the fake values of nodes that a partitioner creates without, such as random ops."""
    for node in graph.nodes:
        if node.op != "call_function" or "val" in node.meta:
            continue
        state = tuple(each.meta["val"] for each in node.users if each.args[1:] == (0,))
        first = {run_and_save_rng_state: 1, run_with_rng_state: 2}.get(node.target, 0)
        args, kwargs = fx.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
        with fake_mode:
            value = (args[first - 1] if first else node.target)(*args[first:], **kwargs)
        node.meta["val"] = (*state, value) if node.target is run_and_save_rng_state else value


def partitioner(given: str | Partitioner, memory_budget: float | None) -> Partitioner:
    """Return a partitioner that runs under this ``activation_memory_budget``, from 0 to 1."""
    if isinstance(given, str):
        given = PARTITIONERS[choose("partition", given, tuple(PARTITIONERS))]
    if not callable(given):
        raise OptionError(
            f"partition_fn must be a function or one of {', '.join(PARTITIONERS)}, got "
            f"{quoted(given)}"
        )
    if memory_budget is None:
        return given
    is_number = isinstance(memory_budget, int | float) and not isinstance(memory_budget, bool)
    if not is_number or not 0 <= memory_budget <= 1:
        raise OptionError(
            f"activation_memory_budget must be a number from 0 to 1, got {memory_budget!r}"
        )

    @wraps(given)
    def within(*args: Any, **kwargs: Any) -> Any:
        with functorch_config.patch(activation_memory_budget=memory_budget):
            return given(*args, **kwargs)

    return within
