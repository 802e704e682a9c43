"""Calls of a step whose control flow depends on data, and new plans for other outcomes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from traceback import clear_frames
from typing import Any

import torch

from graphc.errors import GraphcError, OptionError, TorchError, quoted
from graphc.torch.budget.options import Assume, Given
from graphc.torch.budget.trace.backend import with_first_derivatives
from graphc.torch.budget.trace.branches import (
    Branch,
    OtherOutcomeError,
    Outcomes,
    Tracing,
    Value,
    assuming,
    recorded,
)
from graphc.torch.budget.trace.eager import ChangedError, Functions
from graphc.torch.budget.trace.of_transformers import (
    WITH_DATA,
    WITHOUT_DATA,
    install_hooks,
    passes_positions,
    replaced,
)
from graphc.torch.budget.trace.refusals import innermost_of, is_of_compiling
from graphc.torch.budget.trace.restored import random_states, set_random_states, without_effects
from graphc.torch.budget.trace.settings import context_of
from graphc.torch.budget.trace.step import Step
from graphc.torch.budget.trace.tracing import traced_as_here
from graphc.torch.private import dynamo_errors

SUBMODULE = "submodule_of_trace"
"""The attribute of an error with the path of the submodule whose trace has failed."""


class Assumptions:
    """The outcomes of branches that the plans of a step assume, and the most recent ones. With
    `has_sizes`, sizes are planned ahead."""

    def __init__(self, assume: Assume, has_sizes: bool = False) -> None:
        if assume not in ("replan", "raise"):
            raise OptionError(f"assume must be 'replan' or 'raise', got {quoted(assume)}")
        self.assume, self.has_sizes = assume, has_sizes
        self.current = Outcomes()
        self._known: dict[Any, Outcomes] = {(frozenset(), ()): self.current}
        self.eager: Functions = {}
        """Functions that run in eager mode, because torch.compile cannot trace them."""

    def call(self, step: Step, compiled: Callable[..., Any], given: Given) -> Any:
        """Return the result of a call of the compiled step.

        If a branch has another value than the plan assumes, the call starts again, before it has
        changed anything, and follows the plan for that value. Raises `TorchError` instead if
        `assume` is ``raise``. An error of a trace has the path of its submodule in `SUBMODULE`.
        """
        args, kwargs = given
        tried: list[Outcomes] = []
        outcomes = self.current  # another thread may replace it
        failure: Exception | None
        while True:
            tracing, failure = Tracing(outcomes), None
            states = _states() if outcomes.values else {}
            try:
                with (
                    traced_as_here(),
                    assuming(tracing),
                    self.masks(step, given),
                    context_of(step.step_options.autocast),
                ):
                    return with_first_derivatives(compiled, (tracing.outcomes.label, *args), kwargs)
            except OtherOutcomeError as found:
                other: tuple[Branch, Value] | None = found.branch, found.value
            except Exception as error:
                if install_hooks(step.module, error):
                    continue
                if is_of_compiling(error):
                    setattr(error, SUBMODULE, tracing.failed_in)
                is_new = tracing.is_incomplete and is_of_compiling(error) and not tried
                may_differ = is_new or self._may_run_eagerly(tracing, error)
                if step.step_options.device is not None or not may_differ:
                    raise
                clear_frames(error.__traceback__)
                other, failure = None, error
            tried.append(tracing.outcomes)
            if other is not None:
                set_random_states({name: _tensor(each) for name, each in states.items()})
                self._refuse(tracing.outcomes, *other)
            outcomes = self._next(outcomes, other, tried) or self._rehearse(step, given)
            if outcomes in tried and failure is not None:
                raise failure
            if outcomes in tried:
                raise TorchError(
                    f"the module branches on data{f' at {other[0]}' if other else ''}, where the "
                    "value differs between two runs of the same call; move the branch out of the "
                    "module"
                )
            self.current = outcomes

    def masks(self, step: Step, given: Given) -> AbstractContextManager[object]:
        """Return a context in which transformers decides about masks for a call of a step.

        If sizes are planned ahead, it decides without data, so that one plan serves every mask.
        """
        if not self.has_sizes and self.assume != "replan":
            return replaced({})
        if not self.has_sizes and step.step_options.device is None:
            return replaced(WITH_DATA)
        return replaced({} if passes_positions(given) else WITHOUT_DATA)

    def renew(self, step: Step, given: Given) -> None:
        """Assume the outcomes of a call that will only be planned, so that no check runs."""
        if not self.current.values:
            return
        found = self._rehearse(step, given)
        for branch, value in found.values.items():
            if branch in self.current.values and repr(self.current.values[branch]) != repr(value):
                self._refuse(self.current, branch, value)
        self.current = found

    def _may_run_eagerly(self, tracing: Tracing, error: Exception) -> bool:
        """Return whether a trace may succeed after an eager run, and note the function for it."""
        innermost, function = innermost_of(error), tracing.breaking
        if isinstance(innermost, ChangedError):
            return True
        is_final = isinstance(innermost, GraphcError | dynamo_errors.TorchRuntimeError)
        if is_final or function is None or function.__code__ in self.eager:
            return False
        self.eager[function.__code__] = function
        return is_of_compiling(error)

    def _refuse(self, outcomes: Outcomes, branch: Branch, value: Value) -> None:
        if self.assume == "raise":
            raise TorchError(
                f"the module branches on data at {branch}, where the value is {value} in this "
                f"step, but the plan assumes {outcomes.values.get(branch, True)}; plan with "
                "assume='replan' to plan again for other values, or move the branch out of the "
                "module"
            )

    def _next(
        self, before: Outcomes, other: tuple[Branch, Value] | None, tried: list[Outcomes]
    ) -> Outcomes | None:
        """Return known outcomes with this value, and equal ones before it, or None."""
        if other is None or other[0] not in before.values:
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

    def _rehearse(self, step: Step, given: Given) -> Outcomes:
        """Return the outcomes of an eager call without gradients, and restore everything.

        Equal values have the same label, so the same plan.
        """
        with without_effects(step, given):
            values, found = recorded(lambda: step.unplanned(*given[0], **given[1]), self.eager)
        key = frozenset(_compared(values.items())), tuple(each.key for each in found)
        new = Outcomes(values, f"outcomes {len(self._known)}", found)
        return self._known.setdefault(key, new)


def _compared(values: Iterable[tuple[Branch, Value]]) -> list[tuple[Branch, str]]:
    """Return the branches with texts of their values, since NaN does not equal itself."""
    return [(branch, repr(value)) for branch, value in values]


def _states() -> dict[str, bytes]:
    """Return the states of all generators, as bytes of Python: tensors would count as memory."""
    return {name: each.numpy().tobytes() for name, each in random_states()}


def _tensor(state: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(state), dtype=torch.uint8)
