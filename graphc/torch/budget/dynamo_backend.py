"""The backend ``graphc`` of torch.compile: a byte budget without another wrapper of the module."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from graphc.errors import TorchError
from graphc.keywords import check_known, declared
from graphc.torch.budget.check.returned import Returned
from graphc.torch.budget.goal import Goal
from graphc.torch.budget.make_step import refuse_compiled
from graphc.torch.budget.options import BackendOptions, as_call
from graphc.torch.budget.plan.libraries import library_workspaces
from graphc.torch.budget.plan.planned import Planned
from graphc.torch.budget.trace.backend import Graphs, Rest
from graphc.torch.budget.trace.held import held_by, reserve_bytes
from graphc.torch.budget.trace.joint import Joint
from graphc.torch.budget.trace.sources import sources_of

LOG = logging.getLogger("graphc.torch")


def graphc_backend(
    traced: fx.GraphModule,
    given: Sequence[Any],
    *,
    mode: str = "default",
    options: Mapping[str, Any] | None = None,
) -> Callable[..., Any]:
    """Compile a graph of torch.compile within a byte budget.

    `options` are those of `BackendOptions`. The report of the plan is logged by ``graphc.torch`` at
    the level INFO. Raises `BudgetError` if no plan fits, and `TorchError` for a graph that is not
    the whole function, since its peak is not that of a step. torch.compile wraps both in its own
    error.
    """
    for name in options or {}:
        check_known("the backend graphc", name, tuple(declared(BackendOptions)))
    asked = BackendOptions(**{"mode": mode, **(options or {})})
    refuse_compiled(has_sizes=False, is_on_profile=False)
    _refuse_break(traced)
    if any(not isinstance(each, torch.Tensor) for each in given):
        raise TorchError(
            "the graph has a size that is not a number; give torch.compile dynamic=False, and each "
            "size is planned and compiled at its first call"
        )
    from graphc.torch.budget.trace.inductor import Peaks, compiled_peaks, inductor_backend

    goal = Goal(asked.budget, asked.max_extra_time, compile=asked.mode)
    reserve = reserve_bytes(asked.reserve)
    plans: list[Planned] = []

    def partition(
        module: fx.GraphModule,
        outputs: int,
        names: list[str],
        returned: Returned | None,
        rest: Rest,
    ) -> Graphs:
        joint = Joint(module, outputs, returned=returned)
        # All inputs of the graph count by their own bytes, parameters as well.
        nothing, call = nn.Module(), as_call((), None)
        sources = sources_of(joint, nothing, call, names)
        kept = library_workspaces(joint, None)
        held = held_by(nothing, call, sources.values(), reserve, False, kept)
        plan = goal.planned(joint, held, sources, rest, lower=compiled_peaks)
        plans.append(plan)
        LOG.info("%s", plan.report)
        return plan.forward, plan.backward

    def workspaces(called: Sequence[tuple[str, fx.Node | None]]) -> list[int]:
        return plans[-1].workspaces(called) if plans else [0] * len(called)

    def begin(peaks: Peaks | None) -> Callable[[Any], None]:
        if peaks is not None:
            plans[-1].check_compiled(*peaks)
        return lambda _: None

    return inductor_backend(partition, workspaces, begin, goal.compile)(traced, given)  # type: ignore[no-any-return]


def _refuse_break(traced: fx.GraphModule) -> None:
    """Raise `TorchError` for a graph that ends at a graph break."""
    reason = getattr(traced, "compile_subgraph_reason", None)
    if reason is not None and reason.graph_break:
        at = reason.user_stack[-1] if reason.user_stack else None
        where = "" if at is None else f" at {at.filename}:{at.lineno}"
        raise TorchError(
            f"torch.compile breaks the graph{where}, so no plan can bound the step: "
            f"{str(reason.reason).splitlines()[0]}. Use fullgraph=True to see what breaks it"
        )
