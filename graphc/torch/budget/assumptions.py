"""Calls of a step whose control flow depends on data, and new plans for other outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from traceback import clear_frames
from typing import TYPE_CHECKING, Any, Literal

from graphc.errors import OptionError, TorchError, quoted
from graphc.torch.budget.autocast import context_of
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
from graphc.torch.budget.restored import random_states, set_random_states, without_effects
from graphc.torch.budget.tracing import traced_as_here

if TYPE_CHECKING:
    from graphc.torch.budget.step import PlannedStep

Assume = Literal["replan", "raise"]


class Assumptions:
    """The outcomes of branches that the plans of a step assume, and the most recent ones."""

    def __init__(self, assume: Assume) -> None:
        if assume not in ("replan", "raise"):
            raise OptionError(f"assume must be 'replan' or 'raise', got {quoted(assume)}")
        self.assume = assume
        self.current = Outcomes()
        self._known = {frozenset[tuple[Branch, str]](): self.current}

    def call(self, step: PlannedStep, compiled: Callable[..., Any], given: Given) -> Any:
        """Return the result of a call of the compiled step.

        If a branch has another value than the plan assumes, the call starts again, before it has
        changed anything, and follows the plan for that value. Raises `TorchError` instead if
        `assume` is ``raise``.
        """
        args, kwargs = given
        tried: list[Outcomes] = []
        outcomes = self.current  # another thread may replace it
        while True:
            tracing = Tracing(outcomes)
            states = dict(random_states()) if tracing.outcomes.values else {}
            try:
                with traced_as_here(), assuming(tracing), context_of(step.autocast):
                    return with_first_derivatives(compiled, (tracing.outcomes.label, *args), kwargs)
            except OtherOutcomeError as found:
                other: tuple[Branch, Value] | None = found.branch, found.value
            except Exception as error:
                step._call.failed_in = tracing.failed_in
                if tried or not tracing.is_incomplete or step._device is not None:
                    raise
                clear_frames(error.__traceback__)
                other = None
            tried.append(tracing.outcomes)
            if other is not None:
                set_random_states(states)
                self._refuse(tracing.outcomes, *other)
            outcomes = self._next(outcomes, other, tried) or self._rehearse(step, given)
            if outcomes in tried:
                raise TorchError(
                    f"the module branches on data{f' at {other[0]}' if other else ''}, where the "
                    "value differs between two runs of the same call; move the branch out of the "
                    "module"
                )
            self.current = outcomes

    def renew(self, step: PlannedStep, given: Given) -> None:
        """Assume the outcomes of a call that will only be planned, so that no check runs."""
        if not self.current.values:
            return
        found = self._rehearse(step, given)
        for branch, value in found.values.items():
            if branch in self.current.values and repr(self.current.values[branch]) != repr(value):
                self._refuse(self.current, branch, value)
        self.current = found

    def _refuse(self, outcomes: Outcomes, branch: Branch, value: Value) -> None:
        if self.assume == "raise":
            raise TorchError(
                f"the module branches on data at {branch}, where the value is {value} in this "
                f"step, but the plan assumes {outcomes.values[branch]}; plan with "
                "assume='replan' to plan again for other values, or move the branch out of the "
                "module"
            )

    def _next(
        self, before: Outcomes, other: tuple[Branch, Value] | None, tried: list[Outcomes]
    ) -> Outcomes | None:
        """Return known outcomes with this value, and equal ones before it, or None."""
        if other is None:
            return None
        values = list(before.values.items())
        branches = list(before.values)
        begin = _compared([*values[: branches.index(other[0])], other])
        fitting = (
            each
            for each in reversed(list(self._known.values()))
            if each not in tried and _compared(each.values.items())[: len(begin)] == begin
        )
        return next(fitting, None)

    def _rehearse(self, step: PlannedStep, given: Given) -> Outcomes:
        """Return the outcomes of an eager call without gradients, and restore everything.

        Equal values have the same label, so the same plan.
        """
        with without_effects(step, given):
            values = recorded(lambda: step.unplanned(*given[0], **given[1]))
        key = frozenset(_compared(values.items()))
        return self._known.setdefault(key, Outcomes(values, f"outcomes {len(self._known)}"))


def _compared(values: Iterable[tuple[Branch, Value]]) -> list[tuple[Branch, str]]:
    """Return the branches with texts of their values, since NaN does not equal itself."""
    return [(branch, repr(value)) for branch, value in values]
