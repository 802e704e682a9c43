"""Training options of the command line that do not depend on the data."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import Any

from graphc.compiler.compile import CompileOptions
from graphc.compiler.options import PlacementOptions, RecomputeOptions, StepOptions
from graphc.errors import choose, number_between, whole_number
from graphc.keywords import Flag, declared, option, same
from graphc.ops.learning_rate import LEARNING_RATE_FORMS
from graphc.ops.update import LARGEST
from graphc.optim import OPTIMIZERS, Optimizer, Rate, Schedule
from graphc.runtime.options import RunOptions


@dataclass(frozen=True, kw_only=True)
class Recipe(RecomputeOptions, PlacementOptions, StepOptions):
    """Options for the optimizer, learning-rate schedule, gradients and memory plan."""

    optimizer: str = option(
        "adam",
        "One of {choices}.",
        choices=(*OPTIMIZERS, "none"),
        flag=Flag("{choices} (default: {default})", metavar="O"),
    )
    learning_rate: float | None = option(
        None,
        "The maximum learning rate; by default that of the optimizer.",
        check=partial(number_between, low=0, high=LARGEST),
        flag=Flag(
            "maximum learning rate (default: {default})",
            metavar="R",
            unset="the optimizer's",
            parse=float,
        ),
    )
    schedule: str = option(
        "constant",
        "The learning rate schedule, one of {choices}. All except ``constant`` decay to 0, and "
        "``exponential`` to 1% of the rate.",
        choices=LEARNING_RATE_FORMS,
        flag=Flag("{choices} (default: {default})", metavar="S"),
    )
    warmup: int = option(
        0,
        "The number of warmup steps, in which the rate rises.",
        check=partial(whole_number, least=0),
        flag=Flag(
            "number of warmup steps, in which the rate rises (default: {default})",
            metavar="N",
            unset="none",
            parse=int,
        ),
    )
    weight_decay: float | None = option(
        None,
        "The weight decay; by default that of the optimizer.",
        flag=Flag("default: the optimizer's", metavar="D", parse=float),
    )
    device: str = same(CompileOptions, "device")
    threads: int | None = same(RunOptions, "threads")
    rank_timeout: float = same(RunOptions, "rank_timeout")
    seed: int = same(RunOptions, "seed")
    check_finite: bool = same(RunOptions, "check_finite")

    def plan_options(self) -> dict[str, Any]:
        """Return the keyword arguments for `graphc.plan`, without the optimizer."""
        return {name: getattr(self, name) for name in (*declared(StepOptions), *PLANNING, "device")}

    def compile_options(self, steps: int) -> dict[str, Any]:
        """Return the keyword arguments for `graphc.compile` of a run of `steps` steps."""
        names = ("threads", "rank_timeout", "seed", "check_finite")
        own = {name: getattr(self, name) for name in names}
        return {"optimizer": self.make_optimizer(steps), **own, **self.plan_options()}

    def inference_options(self) -> dict[str, Any]:
        """Return the keyword arguments for `graphc.compile` of an evaluation program."""
        names = ("precision", "device", "kernels", "threads")
        return {name: getattr(self, name) for name in names}

    def make_optimizer(self, steps: int) -> Optimizer:
        """Return the optimizer with its schedule over `steps` steps; may raise `OptionError`."""
        make = OPTIMIZERS[choose("optimizer", self.optimizer, tuple(OPTIMIZERS))]
        settings: dict[str, Any] = {}
        if self.learning_rate is not None:
            settings["learning_rate"] = self.learning_rate
        if self.weight_decay is not None:
            settings["weight_decay"] = self.weight_decay
        plain = make(**settings)
        if not self.is_scheduled:
            return plain
        peak = float(plain.learning_rate)  # type: ignore[attr-defined]
        settings["learning_rate"] = self.make_schedule(peak, steps)
        return make(**settings)

    @property
    def is_scheduled(self) -> bool:
        """True if the learning rate depends on the number of steps."""
        return self.schedule != "constant" or self.warmup > 0

    def make_schedule(self, peak: float, steps: int) -> Rate:
        """Return the learning-rate schedule with maximum `peak` over `steps` steps."""
        floor = peak / 100 if self.schedule == "exponential" else 0.0
        return Schedule(peak, steps, self.warmup, floor, self.schedule)

    def notes(self, steps: int, done: int, **sizes: Any) -> dict[str, str]:
        """Return the checkpoint notes of a run: all settings that affect its continuation."""
        same_numbers = {*PLANNING, "threads", "rank_timeout", "check_finite"}
        same_numbers |= {"ranks", "shard", "sync_norm"}  # same as one joint batch
        settings = {n: getattr(self, n) for n in declared(Recipe) if n not in same_numbers}
        settings |= sizes
        if self.kernels != "native":
            settings["kernels"] = self.kernels
        if self.chunk_losses is None:
            del settings["chunk_losses"]  # as in checkpoints written before this option existed
        if self.device == "cpu":
            del settings["device"]  # recorded for GPUs, whose results differ in the last bits
        if self.is_scheduled:
            settings["steps"] = steps
        return {"settings": json.dumps(settings, sort_keys=True), "steps_done": str(done)}


PLANNING = (*declared(RecomputeOptions), *declared(PlacementOptions))
"""Options of planning; only ``kernels`` changes the numbers that a step computes."""
