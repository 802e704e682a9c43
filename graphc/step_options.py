"""Options of a step: its computation and its numerics, independent of the plan."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property, partial
from typing import Literal, cast

from graphc.errors import OptionError, choose, number_between, quoted, truth, whole_number
from graphc.ir.graph import Value
from graphc.keywords import Flag, Options, option
from graphc.ops.collective import MOST_RANKS
from graphc.optim import LARGEST_FLOAT32, OPTIMIZERS, Optimizer
from graphc.optim.rates import optimizer_of
from graphc.plans.memory_plan import PRECISIONS, Precision

SMALLEST_NORM = 1e-30

MOST_MICRO_BATCHES = 1024
"""The maximum number of micro-batches of a step. Each one adds its own nodes to the graph."""


def _micro_batches(name: str, given: object) -> None:
    if whole_number(name, given) > MOST_MICRO_BATCHES:
        raise OptionError(
            f"{name} must be at most {MOST_MICRO_BATCHES}, because each micro-batch adds nodes to "
            f"the graph, got {quoted(given)}"
        )


def check_precision(name: str, given: object) -> None:
    """Raise `OptionError` unless `given` is a precision; the names of dtypes get a hint."""
    dtypes = {PRECISIONS[precision]: precision for precision in ("fp32", "bf16", "fp16")}
    if isinstance(given, str) and given in dtypes:
        raise OptionError(f"unknown {name} {given!r}; did you mean {dtypes[given]}?")
    choose(name, cast(str, given), tuple(PRECISIONS))


true_false_or_none = partial(truth, beside=", or None")
"""A check for options that are True, False or None."""


@dataclass(frozen=True)
class NetworkOptions(Options):
    """The options of the computation of a step: loss, outputs and optimizer."""

    loss: Value | None = option(None, "The loss to minimize; an output named ``loss``.")
    _: KW_ONLY
    outputs: Sequence[Value] | Mapping[str, Value] = option(
        (),
        "Outputs other than the loss: a mapping, or a sequence, whose items are named "
        "``output0``, ``output1``, ...",
    )
    optimizer: Optimizer | str | None = option(
        None,
        "The optimizer of a training step, which computes the loss, its gradients and the "
        "updates of all trainable parameters: an object, or one of {choices}. Without one, a step "
        "only computes the outputs.",
        choices=tuple(OPTIMIZERS),
        check=optimizer_of,
    )

    @cached_property
    def trained_by(self) -> Optimizer | None:
        """The optimizer as an object; None if a step does not train."""
        return None if self.optimizer is None else optimizer_of("optimizer", self.optimizer)


@dataclass(frozen=True, kw_only=True)
class StepOptions(Options):
    """The options of the execution of a step: accumulation, ranks, precision and others."""

    clip_norm: float | None = option(
        None,
        "The maximum global norm of the gradients; larger gradients are scaled down together.",
        check=partial(number_between, low=SMALLEST_NORM, high=LARGEST_FLOAT32),
        flag=Flag(
            "maximum global norm of the gradients (default: {default})",
            metavar="C",
            unset="no limit",
            parse=float,
        ),
    )
    accumulate: int = option(
        1,
        "The number k of micro-batches whose gradients a step sums before the update. Inputs, "
        "and outputs except the loss, get a first axis of extent k; the loss is the mean.",
        check=_micro_batches,
        flag=Flag("micro-batches per step (default: {default})", metavar="K", parse=int),
    )
    ranks: int = option(
        1,
        "The number of data-parallel ranks. Each process has its own batch; gradients are summed "
        "and losses averaged. See docs/parallel.md.",
        check=partial(whole_number, most=MOST_RANKS),
        flag=Flag(
            "number of data-parallel ranks, each with its own batch (default: {default})",
            metavar="N",
            parse=int,
        ),
    )
    shard: Literal["none", "states"] = option(
        "none",
        "One of {choices}. With ``states``, each of N `ranks` stores and updates 1/N of "
        "parameters and moments, and parameters are gathered before use. See docs/parallel.md.",
        choices=("none", "states"),
        flag=Flag("what is sharded over ranks: {choices} (default: {default})", metavar="S"),
    )
    sync_norm: bool = option(
        False,
        "Synchronize batch norm statistics over all `ranks`.",
        check=truth,
        flag=Flag("synchronize batch norm statistics over all ranks", action="store_true"),
    )
    precision: Precision = option(
        "fp32",
        "One of {choices}. ``bf16`` and ``fp16`` store feature maps in 16 bits and parameters in "
        "float32; ``fp16`` scales the loss and skips the update of a step that overflows; ``fp8`` "
        "is ``bf16`` with 8-bit operands of linear layers. "
        "``tf32`` lets float32 products on a GPU round their operands to 10 bits of mantissa.",
        choices=tuple(PRECISIONS),
        check=check_precision,
        flag=Flag("precision of feature maps: {choices} (default: {default})", metavar="P"),
    )
    chunk_losses: bool | None = option(
        None,
        "Compute a cross entropy and the linear layer before it in chunks of rows if that "
        "reduces the peak by at least 5%. Losses and gradients are equal up to rounding, and "
        "have no second derivative. None does so on a GPU.",
        check=true_false_or_none,
        flag=Flag(
            "last layer and loss in chunks of rows if that reduces the peak (default: on a GPU)",
            action=argparse.BooleanOptionalAction,
        ),
    )
