"""How a network is trained, whatever the data: what the command line lets you set."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from graphc.errors import CheckpointError, OptionError, choose
from graphc.ir.ops.learning_rate import FORMS
from graphc.ir.plan import Allocate, Precision, Recompute
from graphc.optim import OPTIMIZERS, Optimizer, Rate, Schedule
from graphc.runtime.checkpoint import read_notes
from graphc.training_step import check_accumulate


@dataclass(frozen=True)
class Recipe:
    """Optimizer, learning rate and its schedule, and what a step does with gradients.

    `learning_rate` None is the optimizer's own. A schedule other than ``constant`` ends at 0, or
    at a hundredth of the rate where it is exponential.
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
    seed: int = 0

    def __post_init__(self) -> None:
        check_accumulate(self.accumulate)

    def compile_options(self, steps: int) -> dict[str, Any]:
        """Keyword arguments for `graphc.compile` and `graphc.plan` of a run of that many steps."""
        return {
            "optimizer": self.make_optimizer(steps),
            "clip_norm": self.clip_norm,
            "accumulate": self.accumulate,
            "precision": self.precision,
            "recompute": self.recompute,
            "allocate": self.allocate,
        }

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
        return choose("schedule", self.schedule, FORMS) != "constant" or self.warmup > 0

    def make_schedule(self, peak: float, steps: int) -> Rate:
        """The rate from `peak` on over `steps` steps."""
        floor = peak / 100 if self.schedule == "exponential" else 0.0
        return Schedule(peak, steps, self.warmup, floor, self.schedule)

    def notes(self, steps: int, done: int, **sizes: Any) -> dict[str, str]:
        """What a checkpoint says of its run: all that decides how it goes on."""
        settings = {k: v for k, v in asdict(self).items() if k not in ("recompute", "allocate")}
        settings |= sizes
        if self.is_scheduled:
            settings["steps"] = steps
        return {"settings": json.dumps(settings, sort_keys=True), "steps_done": str(done)}


def steps_done(path: str, notes: Mapping[str, str], steps: int) -> int:
    """How far the run saved at `path` came; `notes` are those of the run that is to go on.

    Raises `CheckpointError` where the file is from another run or has as many steps already.
    """
    found = read_notes(path)
    if "settings" not in found or not found.get("steps_done", "").isdigit():
        raise CheckpointError(
            f"{path!r} does not say how far its run came; --resume takes a file that graphc train "
            "--save has written"
        )
    then, now = json.loads(found["settings"]), json.loads(notes["settings"])
    changed = [
        f"{key} was {then.get(key)!r} and is {now.get(key)!r}"
        for key in sorted({*then, *now})
        if then.get(key) != now.get(key)
    ]
    if changed:
        raise CheckpointError(
            f"{path!r} is from a run with other settings: {'; '.join(changed)}; give the same ones "
            "to go on with it"
        )
    done = int(found["steps_done"])
    if done >= steps:
        raise OptionError(f"{path!r} has done {done} steps, and the whole run is to have {steps}")
    return done
