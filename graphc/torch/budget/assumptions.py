"""Calls of a step whose control flow depends on data, and new plans for other outcomes."""

from __future__ import annotations

from collections.abc import Callable
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, Literal

from graphc.errors import OptionError, TorchError, quoted
from graphc.torch.budget.backend import with_first_derivatives
from graphc.torch.budget.branches import (
    Branch,
    OtherOutcomeError,
    Outcomes,
    Tracing,
    Value,
    assuming,
    recorded,
)
from graphc.torch.budget.example import Given
from graphc.torch.budget.restored import as_before, random_states, set_random_states
from graphc.torch.budget.tracing import traced_as_here

if TYPE_CHECKING:
    from graphc.torch.budget.step import PlannedStep

Assume = Literal["replan", "raise"]

ATTEMPTS = 100
"""Maximum number of plans that one call may need, each with one other outcome."""


class Assumptions:
    """The outcomes of branches that the plans of a step assume, and the most recent ones."""

    def __init__(self, assume: Assume) -> None:
        if assume not in ("replan", "raise"):
            raise OptionError(f"assume must be 'replan' or 'raise', got {quoted(assume)}")
        self.assume = assume
        self.current = Outcomes()
        self._known = {frozenset[tuple[Branch, Value]](): self.current}

    def call(self, step: PlannedStep, compiled: Callable[..., Any], given: Given) -> Any:
        """Return the result of a call of the compiled step.

        If a branch has another value than the plan assumes, the call starts again, before it has
        changed anything, and follows the plan for that value. Raises `TorchError` instead if
        `assume` is ``raise``.
        """
        args, kwargs = given
        was_run = False
        for _ in range(ATTEMPTS):
            tracing = Tracing(self.current)
            states = dict(random_states()) if tracing.outcomes.values else {}
            try:
                with traced_as_here(), assuming(tracing):
                    return with_first_derivatives(
                        compiled, (tracing.outcomes.label, *args), kwargs
                    )
            except OtherOutcomeError as found:
                branch, value = found.branch, found.value
            except Exception as error:
                step._call.failed_in = tracing.failed_in
                if was_run or not tracing.is_incomplete:
                    raise
                clear_frames(error.__traceback__)
                branch = None
            if branch is None:
                self._take(_values(step, given), "as in an eager call")
                was_run = True
                continue
            set_random_states(states)
            before = tracing.outcomes.values
            if self.assume == "raise":
                raise TorchError(
                    f"the module branches on data at {branch}, where the value is {value} in this "
                    f"step, but the plan assumes {before[branch]}; plan with assume='replan' to "
                    "plan again for other values, or move the branch out of the module"
                )
            self._take({**before, branch: value}, f"{branch} is {value}")
        raise TorchError(
            f"the values that the module branches on, at {branch} for example, differ in each of "
            f"{ATTEMPTS} attempts to run the step; move the branch out of the module"
        )

    def _take(self, values: dict[Branch, Value], why: str) -> None:
        """Assume these values from now on; equal values have the same label, so the same plan."""
        made = Outcomes(values, f"{why} ({len(self._known)})")
        self.current = self._known.setdefault(frozenset(values.items()), made)


def _values(step: PlannedStep, given: Given) -> dict[Branch, Value]:
    """Return the value at each branch of an eager call, after which everything is restored."""
    with as_before(step, given):
        return recorded(lambda: step.unplanned(*given[0], **given[1]))
