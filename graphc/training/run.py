"""Base class of training runs: progress and checkpoints."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from graphc.errors import CheckpointError, NonFiniteError, OptionError
from graphc.plans.memory_plan import MemoryPlan
from graphc.runtime.checkpoint import read_notes
from graphc.runtime.family import Family
from graphc.runtime.program import Program
from graphc.training.recipe import Recipe

Array = np.ndarray[Any, np.dtype[Any]]


class TrainingRun:
    """A training program, its recipe, and the sizes that identify its network and data.

    The program is a family if the last batch of an epoch is smaller than the others. Subclasses
    implement `run`, which yields the number of completed steps after each step, and reports.
    """

    def __init__(
        self, recipe: Recipe, training: Program | Family, steps: int, **sizes: Any
    ) -> None:
        self.recipe, self.training, self.steps, self.sizes = recipe, training, steps, sizes
        self.done = 0

    def run(self) -> Iterator[Any]:
        """Train from step `done` to step `steps`, yielding reports."""
        raise NotImplementedError

    @property
    def plan(self) -> MemoryPlan:
        """The plan of a training step with a whole batch, the first size of a family."""
        training = self.training
        return training.plan.plans[0] if isinstance(training, Family) else training.plan

    def own(self, rows: Array, batch: int) -> Array:
        """Return this rank's rows of a step, with all of its micro-batches concatenated.

        The rows of a step are ordered by micro-batch, then by rank. All ranks together therefore
        see the same rows as one process with the joint batch.
        """
        ranks = self.training.ranks
        parted = rows.reshape(-1, ranks, batch, *rows.shape[1:])[:, self.training.rank]
        return parted.reshape(-1, *rows.shape[1:])

    def step(self, feeds: Mapping[str, Array]) -> float:
        """Run one step and return its loss.

        Raises `NonFiniteError` if the loss is not finite, except in fp16, after counting the step
        as completed. With `Recipe.check_finite`, the error names the op, and the step is not
        counted.
        """
        try:
            loss = float(self.training.step(feeds)["loss"])
        except NonFiniteError as error:
            raise NonFiniteError(f"step {self.done + 1} is not finite: {error}") from None
        self.done += 1
        if not math.isfinite(loss) and self.recipe.precision != "fp16":
            raise NonFiniteError(
                f"the loss of step {self.done} is {loss}; --check-finite finds the op that "
                "computes NaN or infinity first; try a smaller --learning-rate, a longer "
                "--warmup, or --clip-norm"
            )
        return loss

    def copy_states(self, program: Program) -> None:
        """Copy the trained states to another program of the network.

        All ranks must call this method.
        """
        trained = self.training.states
        program.states.update({name: trained[name] for name in program.states})

    def save(self, path: str) -> None:
        """Write the states and the progress of the run.

        All ranks must call this method; rank 0 writes the file.
        """
        self.training.save(path, self.recipe.notes(self.steps, self.done, **self.sizes))

    def resume(self, path: str) -> None:
        """Continue the run saved at `path`."""
        notes = self.recipe.notes(self.steps, 0, **self.sizes)
        done = steps_done(path, notes, self.steps)
        self.training.load(path)
        self.done = done


def steps_done(path: str, notes: Mapping[str, str], steps: int) -> int:
    """Return the number of completed steps of the run saved at `path`.

    `notes` are those of the run to continue. Raises `CheckpointError` if the file is from a
    different run, and `OptionError` if it already has `steps` steps.
    """
    found = read_notes(path)
    if "settings" not in found or not found.get("steps_done", "").isdigit():
        raise CheckpointError(
            f"{path!r} does not record the progress of its run; --resume needs a file written by "
            "graphc train --save"
        )
    then, now = json.loads(found["settings"]), json.loads(notes["settings"])
    changed = [
        f"{key} was {then.get(key)!r} and is {now.get(key)!r}"
        for key in sorted({*then, *now})
        if then.get(key) != now.get(key)
    ]
    if changed:
        raise CheckpointError(
            f"{path!r} is from a run with other settings: {'; '.join(changed)}; use the same "
            "settings to resume it"
        )
    done = int(found["steps_done"])
    if done >= steps:
        raise OptionError(
            f"{path!r} has completed {done} steps, but the run has only {steps}; increase the "
            "number of steps"
        )
    return done
