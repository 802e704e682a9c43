"""How a network is trained, whatever the data: what the command line lets you set."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from typing import Any

from graphc.errors import choose, number_between, whole_number
from graphc.ops.learning_rate import FORMS
from graphc.optim import LARGEST, OPTIMIZERS, Optimizer, Rate, Schedule
from graphc.plans.memory_plan import PRECISIONS, Allocate, Precision, Recompute

PLANNING = (
    "recompute", "allocate", "budget", "feature_map_budget", "max_extra_flops", "costs", "roofline",
    "reorder", "fuse",
)  # fmt: skip
"""Settings that change no number that a step computes."""


@dataclass(frozen=True)
class Recipe:
    """Optimizer, learning rate and its schedule, and what a step does with gradients.

    `learning_rate` None is the optimizer's own. A schedule other than ``constant`` ends at 0, or
    at a hundredth of the rate where it is exponential. How the step is planned (`recompute`,
    `allocate`, `costs`, `roofline`, `reorder`, `fuse`) changes no number that it computes.
    """

    optimizer: str = "adam"
    learning_rate: float | None = None
    schedule: str = "constant"
    warmup: int = 0
    weight_decay: float | None = None
    clip_norm: float | None = None
    accumulate: int = 1
    precision: Precision = "fp32"
    recompute: Recompute = "none"
    allocate: Allocate = "packed"
    budget: int | str | None = None
    feature_map_budget: int | str | None = None
    max_extra_flops: float | None = None
    costs: str | None = None
    roofline: str | None = None
    reorder: bool = True
    fuse: bool | None = None
    device: str = "cpu"
    seed: int = 0

    def __post_init__(self) -> None:
        choose("optimizer", self.optimizer, (*OPTIMIZERS, "none"))
        choose("schedule", self.schedule, FORMS)
        choose("precision", self.precision, tuple(PRECISIONS))
        whole_number("warmup", self.warmup, 0)
        whole_number("accumulate", self.accumulate)
        if self.learning_rate is not None:
            number_between("learning_rate", self.learning_rate, 0, LARGEST)

    def compile_options(self, steps: int) -> dict[str, Any]:
        """Keyword arguments for `graphc.compile` and `graphc.plan` of a run of that many steps."""
        return {
            "optimizer": self.make_optimizer(steps),
            "clip_norm": self.clip_norm,
            "accumulate": self.accumulate,
            "precision": self.precision,
            "device": self.device,
            **{name: getattr(self, name) for name in PLANNING},
        }

    def inference_options(self) -> dict[str, Any]:
        """Keyword arguments for `graphc.compile` of a program that tests what was trained."""
        return {"precision": self.precision, "device": self.device}

    def make_optimizer(self, steps: int) -> Optimizer:
        """The optimizer with its schedule over `steps` steps; raises `OptionError`."""
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
        """Whether the rate depends on the number of steps."""
        return self.schedule != "constant" or self.warmup > 0

    def make_schedule(self, peak: float, steps: int) -> Rate:
        """The rate from `peak` on over `steps` steps."""
        floor = peak / 100 if self.schedule == "exponential" else 0.0
        return Schedule(peak, steps, self.warmup, floor, self.schedule)

    def notes(self, steps: int, done: int, **sizes: Any) -> dict[str, str]:
        """What a checkpoint says of its run: all that decides how it goes on."""
        settings = {k: v for k, v in asdict(self).items() if k not in PLANNING}
        settings |= sizes
        if self.device == "cpu":
            del settings["device"]  # what a GPU computes differs in the last bits
        if self.is_scheduled:
            settings["steps"] = steps
        return {"settings": json.dumps(settings, sort_keys=True), "steps_done": str(done)}
