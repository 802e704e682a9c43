"""A step as tracing, sizes and verification see it: a module, its loss and options, and its calls.

`PlannedStep` (budget/step.py) is the step that has plans.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from graphc.devices.device import Device
from graphc.torch.budget.options import Given
from graphc.torch.budget.trace.settings import Autocast, Loss, context_of
from graphc.torch.budget.trace.transparent import Transparent

WatchOfPart = Callable[[str, str], AbstractContextManager[object]]
"""Returns a context for a node, given its graph (``forward`` or ``backward``) and its name."""


class Ran(NamedTuple):
    """A watched step: its plan, and the memory ranges of the forward graph's inputs."""

    plan: Any
    given: list[range]


@dataclass(frozen=True)
class StepOptions:
    """Options of a step besides its goal and its sizes.

    `reserve` is the size of an optimizer's state in bytes. With `accumulate`, gradients of earlier
    steps exist. `device` is the profile of a step that cannot run, or None. `is_compiled` is True
    if inductor compiles the step.
    """

    loss: Loss
    reserve: int = 0
    accumulate: bool = False
    autocast: Autocast | None = None
    device: Device | None = None
    is_compiled: bool = False


class Step(Transparent):
    """A module in a training step, which can be called without a plan; subclasses plan it."""

    step_options: StepOptions
    plans: list[Any]
    """Plans in the order in which they were made."""

    def __init__(
        self, module: nn.Module, loss_fn: Callable[..., Any] | None, options: StepOptions
    ) -> None:
        super().__init__(module, loss_fn)
        # The names of this class and of PlannedStep hide those of the module, so they are unusual.
        self.__dict__["step_options"] = options

    def unplanned(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of a call, computed without a plan."""
        with context_of(self.step_options.autocast):
            return self.call_unplanned(args, kwargs)

    def call_unplanned(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the output or the loss; torch.compile traces this function."""
        loss = self.step_options.loss
        if self.loss_fn is None:
            return loss.applied(self.module(*args, **kwargs))
        return loss.applied(self.loss_fn(self.module(*args[:-1], **kwargs), args[-1]))

    def plan(self, args: Any, kwargs: Any) -> None:
        """Plan the shapes of these arguments without running the step."""
        raise NotImplementedError

    def remember_call(self, given: Given) -> None:
        """Keep weak references to the arguments of the last plan."""
        raise NotImplementedError

    def watched(self, watch: WatchOfPart) -> AbstractContextManager[None]:
        """Run each node of this thread's steps in the context that `watch` returns for it."""
        raise NotImplementedError

    @property
    def ran(self) -> Ran:
        """The last step that this thread watched."""
        raise NotImplementedError
