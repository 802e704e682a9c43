"""A Trainer of transformers that holds a byte budget. Importing this imports transformers."""

from __future__ import annotations

import inspect
from typing import Any

from graphc.errors import DependencyError, OptionError, TorchError, to_install
from graphc.keywords import declared
from graphc.torch.versions import require_torch

try:
    from transformers import Trainer

    from graphc.torch.budget.goal import Goal
    from graphc.torch.budget.make_step import refuse_compiled, to_plan
    from graphc.torch.budget.options import GoalOptions, TorchPlanOptions
    from graphc.torch.budget.sizes.options import Requested
    from graphc.torch.budget.step import PlannedStep
except ImportError as error:
    raise DependencyError(
        "graphc.torch.integrations requires torch, transformers and accelerate; "
        + to_install("torch transformers accelerate", "models")
    ) from error


OF_GOAL = tuple(declared(GoalOptions))
"""The options of `graphc.torch.plan` that a PlannedTrainer takes."""


class PlannedTrainer(Trainer):  # type: ignore[misc]
    """A ``transformers.Trainer`` whose training steps follow a plan; evaluation runs without one.

    `budget`, `host_budget`, `max_extra_time`, `compile`, `sizes`, `dynamic`, `max_sizes`, `pad` and
    `unplanned` are those of `graphc.torch.plan`, all other arguments those of Trainer. The first
    training step plans for its batch, or for all `sizes`, with the state of the optimizer in
    reserve. `planned_step` is the step, with its report. Raises `OptionError` for sizes together
    with label smoothing or ``compute_loss_func``, which compare padded outputs with labels that are
    not padded.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        require_torch()
        aims = GoalOptions(**{name: kwargs.pop(name) for name in OF_GOAL if name in kwargs})
        # These raise `OptionError` before the Trainer begins.
        Goal(aims.budget, aims.max_extra_time, aims.host_budget, aims.compile)
        requested = Requested.of(aims)
        if aims.compile:
            refuse_compiled(requested is not None, is_on_profile=False)
        super().__init__(*args, **kwargs)
        if requested is not None and self._reads_outputs:
            raise OptionError(
                "sizes and dynamic pad the outputs, but label smoothing and compute_loss_func "
                "compare them with labels that are not padded; use the loss of the model, or plan "
                "without sizes"
            )
        self.goal_options = aims
        self.planned_step: PlannedStep | None = None

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the loss; in training, computed by the planned step."""
        if model.training and not return_outputs:
            self.planned_step = self.planned_step or self._to_plan(model)
            model = self.planned_step
        return super().compute_loss(model, inputs, return_outputs, num_items_in_batch)

    @property
    def _reads_outputs(self) -> bool:
        """True if a loss function of the Trainer reads the other outputs."""
        return self.label_smoother is not None or self.compute_loss_func is not None

    def _to_plan(self, model: Any) -> PlannedStep:
        """Return a step for the model, which is planned by its first call."""
        if self.accelerator.unwrap_model(model) is not model:
            raise TorchError(
                f"PlannedTrainer plans a model of one process, but this Trainer has wrapped it in "
                f"{type(model).__name__}; pass Trainer(model=graphc.torch.plan(...)), which wraps "
                "the step"
            )
        options = TorchPlanOptions(
            model,
            (),
            **vars(self.goal_options),
            reserve=self.optimizer,
            accumulate=self.args.gradient_accumulation_steps > 1,
            loss=None if self._reads_outputs else lambda outputs: outputs[:1],
            return_outputs=self._reads_outputs,
        )
        return to_plan(options)


def _signature() -> inspect.Signature:
    """Return the parameters of a Trainer, and the options of a goal as keywords."""
    of_goal = inspect.signature(GoalOptions).parameters.values()
    keywords = (each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in of_goal)
    return inspect.Signature([*inspect.signature(Trainer).parameters.values(), *keywords])


PlannedTrainer.__signature__ = _signature()
