"""Warnings about further plans: for new sizes, and for planned ones with the guard that failed.

A plan is specialized for the Python values that the module reads. If one of them changes, torch
traces the module again, and the plan that trains is another one than the reported plan.
"""

from __future__ import annotations

import re
import reprlib
import warnings
from types import CodeType
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from graphc.errors import level_of_caller
from graphc.torch.budget.options import Given
from graphc.torch.budget.trace.names import expression_of_user
from graphc.torch.private import guard_failures

OF_OTHERS = re.compile("mismatch at index|grad_mode")
"""Reasons why plans of other shapes, and graphs without gradients, do not serve a call."""

SINGLETONS = {id(each): repr(each) for each in (True, False, None)}


class Replans:
    """The planned calls of a step, by their tensors."""

    def __init__(self) -> None:
        self.codes: list[CodeType] = []
        """The code of each function of the step that torch traces, in the order of creation."""
        self.planned: set[tuple[object, ...]] = set()
        self._sizes: set[tuple[torch.Size, ...]] = set()
        self._has_warned = False

    @property
    def _reasons(self) -> list[str]:
        """The failed guards that torch has recorded for this step."""
        return [reason for code in self.codes for reason in guard_failures.get(code, ())]

    @property
    def failures(self) -> int:
        """The number of failed guards that torch has recorded for this step."""
        return len(self._reasons)

    def is_first_other_size(self, given: Given) -> bool:
        """Note the sizes of a planned call, and return whether they are the first that differ from
        those of the first plan."""
        tensors = (each for each in tree_leaves(given) if isinstance(each, torch.Tensor))
        self._sizes.add(tuple(each.shape for each in tensors))
        before, self._has_warned = self._has_warned, self._has_warned or len(self._sizes) > 1
        return self._has_warned and not before

    def failed_guard(self, step: Any, given: Given, since: int) -> str:
        """Note a plan, and return the guard that failed.

        The result is empty if such tensors are new, or if no guard failed: then a trace with
        symbolic sizes is planned for sizes that an earlier trace with fixed sizes has. `since` is
        the number of `failures` before the call.
        """
        tensors = (each for each in tree_leaves(given) if isinstance(each, torch.Tensor))
        kinds = tuple((each.shape, each.dtype, each.requires_grad) for each in tensors)
        if kinds not in self.planned:
            self.planned.add(kinds)
            return ""
        reasons = self._reasons[since:]
        if not reasons:
            return ""
        own = [each for each in reasons if not OF_OTHERS.search(each)]
        return _described(guard_of((own or reasons)[0]), step, given)


def warn_of_replan(guard: str, has_sizes: bool) -> None:
    """Warn that a call with planned shapes has made another plan."""
    reported = "still describes the sizes as planned ahead" if has_sizes else "now describes it"
    warnings.warn(
        f"this step has been planned again for the same shapes, because {guard}; the new plan is "
        f"step.plans[-1], and step.report {reported}. A plan is specialized for the Python "
        "values that the module reads: set them before planning, and store changing values in a "
        "tensor, such as a buffer, or outside the module",
        stacklevel=level_of_caller(),
    )


def warn_of_sizes(seconds: float, is_compiled: bool) -> None:
    """Warn that a call with other sizes than before was planned, and took these seconds."""
    advice = (
        "Pad arguments to few sizes"
        if is_compiled
        else "To plan all sizes before the first step, give sizes= or dynamic= to "
        "graphc.torch.plan or PlannedTrainer"
    )
    warnings.warn(
        "this step plans every new size of its arguments at the first call that has it, and this "
        f"call took {seconds:.1f} s. {advice}. Later sizes are planned without this warning",
        stacklevel=level_of_caller(),
    )


def guard_of(reason: str) -> str:
    """Return the guard in torch's reason for a recompilation, such as ``L['self'].calls == 3``."""
    return re.split(r"\s*(?:#|\(HINT|\n|$)", re.sub(r"^\d+/\d+: ", "", reason), maxsplit=1)[0]


def _described(guard: str, step: Any, given: Given) -> str:
    """Return the guard's expression with its value in the plan and its value now."""
    args, kwargs = given
    if "branches" in guard:
        return "its control flow depends on data, which has other values (see report.assumed)"
    compared = re.fullmatch(r"(.+?) (?:==|is) (.+)", guard)
    same = re.match(r"___check_obj_id\((.+), (\d+)\)", guard)
    if compared is not None:
        expression, planned = compared.groups()
    elif same is not None:
        expression, planned = same[1], SINGLETONS.get(int(same[2]), "another object")
    else:
        return f"a guard failed: {expression_of_user(guard)}"
    variables = {"self": step, "args": args, "kwargs": kwargs}
    try:
        now = reprlib.repr(eval(expression, {**variables, "L": variables}))
    except Exception:  # an expression of functions that only torch has
        now = "another value"
    return f"{expression_of_user(expression)} was {planned} and is {now}"
