"""Options of a step: its computation and its numerics, independent of the plan."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Literal

from graphc.errors import OptionError, number_between, quoted, truth, whole_number
from graphc.ir.graph import Value
from graphc.keywords import Flag, Options, option
from graphc.ops.collective import MOST_RANKS
from graphc.optim import LARGEST_FLOAT32, Optimizer
from graphc.optim.rates import check_optimizer
from graphc.plans.memory_plan import PRECISIONS, Precision

SMALLEST_NORM = 1e-30

MOST_MICRO_BATCHES = 1024
"""The maximum number of micro-batches of a step: each has its own nodes."""


def _micro_batches(name: str, given: object) -> None:
    if whole_number(name, given) > MOST_MICRO_BATCHES:
        raise OptionError(
            f"{name} is at most {MOST_MICRO_BATCHES}, as each micro-batch has nodes of its own, "
            f"got {quoted(given)}"
        )


true_false_or_none = partial(truth, beside=", or None")
"""A check for options that are True, False or None."""


@dataclass(frozen=True)
class NetworkOptions(Options):
    """The options of the computation of a step: loss, outputs and optimizer."""

    loss: Value | None = option(None, "What is trained; an output named ``loss``.")
    _: KW_ONLY
    outputs: Sequence[Value] | Mapping[str, Value] = option(
        (),
        "Other outputs, beside the loss or alone: a mapping, or a sequence that is named "
        "``output0``, ``output1``, ...",
    )
    optimizer: Optimizer | None = option(
        None,
        "With one a step trains: it computes the loss, its gradients and the updates of all "
        "trainable parameters. Without one it only computes the outputs.",
        check=check_optimizer,
    )


@dataclass(frozen=True, kw_only=True)
class StepOptions(Options):
    """The options of the execution of a step: accumulation, ranks, precision and others."""

    clip_norm: float | None = option(
        None,
        "All gradients are scaled down together where their norm is larger.",
        check=partial(number_between, low=SMALLEST_NORM, high=LARGEST_FLOAT32),
        flag=Flag(
            "largest global norm of the gradients (default: {default})",
            metavar="C",
            unset="no limit",
            parse=float,
        ),
    )
    accumulate: int = option(
        1,
        "With k, a step adds the gradients of k micro-batches before it updates: inputs, and "
        "outputs but the loss, get a first axis of k, and the loss is the average.",
        check=_micro_batches,
        flag=Flag("micro-batches a step (default: {default})", metavar="K", parse=int),
    )
    ranks: int = option(
        1,
        "Number of data-parallel processes, each with its own batch: they add their gradients "
        "up, and the loss is the mean of theirs. See docs/parallel.md.",
        check=partial(whole_number, most=MOST_RANKS),
        flag=Flag(
            "data-parallel processes, each with its own batch (default: {default})",
            metavar="N",
            parse=int,
        ),
    )
    shard: Literal["none", "states"] = option(
        "none",
        "One of {choices}: with ``states`` each of `ranks` holds and updates an N-th of parameters "
        "and moments, and parameters are gathered before they are read. See docs/parallel.md.",
        choices=("none", "states"),
        flag=Flag("what is sharded over ranks: {choices} (default: {default})", metavar="S"),
    )
    sync_norm: bool = option(
        False,
        "Whether batch norms take the statistics of all `ranks` together, not each of its own.",
        check=truth,
        flag=Flag("batch norms over all ranks together", action="store_true"),
    )
    precision: Precision = option(
        "fp32",
        "One of {choices}: ``bf16`` and ``fp16`` keep feature maps in 16 bits beside float32 "
        "parameters; ``fp16`` scales the loss and skips the update of a step that overflows. "
        "``tf32`` lets a GPU's float32 products round their operands to 10 bits.",
        choices=tuple(PRECISIONS),
        flag=Flag("of feature maps: {choices} (default: {default})", metavar="P"),
    )
    chunk_losses: bool | None = option(
        None,
        "Compute a cross entropy and the linear layer before it by parts of the rows where that "
        "lowers the peak by a twentieth: losses and gradients are the same but for rounding, and "
        "have no second derivative. None does so on a GPU.",
        check=true_false_or_none,
        flag=Flag(
            "compute the last layer and loss in chunks if that lowers the peak (default: on a GPU)",
            action=argparse.BooleanOptionalAction,
        ),
    )
