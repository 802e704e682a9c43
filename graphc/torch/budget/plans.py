"""Public functions that plan training steps of torch; they import torch when called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphc.keywords import takes
from graphc.torch.budget.options import FrontierOptions, TorchPlanOptions, as_call
from graphc.torch.versions import require_torch

if TYPE_CHECKING:
    import torch

    from graphc.torch.budget.audit import Audit
    from graphc.torch.budget.plan.trade_off import Frontier
    from graphc.torch.budget.step import PlannedStep


@takes(TorchPlanOptions)
def plan(options: TorchPlanOptions) -> PlannedStep:
    """Return a module whose training steps follow a memory plan with a known peak.

    `args` and `kwargs` are the arguments of one call. `budget` bounds the peak of a whole step:
    parameters, buffers, inputs, activations, workspaces, gradients, and `reserve`. With
    `accumulate`, gradients of earlier steps count as well.

    The step has the class, the attributes and the ``state_dict`` of the module.
    Parameters, ``.grad`` and the optimizer remain those of torch. Gradients, buffers and random
    numbers are bitwise equal to those of the module compiled with ``backend="aot_eager"``, where
    its kernels are deterministic; not with `compile`. A call with a new shape makes a new plan.

    If tensors are on the meta device or of a `FakeTensorMode`, or with `device`, nothing runs:
    costs are estimated for the profile, by default that of an H200, without workspaces. The step
    then has a report and cannot be called.

    Raises `BudgetError` if no plan fits, before the step runs; the error names the least peak found
    and the modules at that peak. Raises `TorchError` for modules that cannot be planned, and
    before planning if padding to a size changes the loss of the example in evaluation mode. Raises
    `OptionError` for wrong arguments.
    """
    require_torch()
    from graphc.torch.budget.make_step import planned

    return planned(options)


@takes(FrontierOptions)
def frontier(options: FrontierOptions) -> Frontier:
    """Return peaks and extra times, from the most bytes to the fewest; errors as in `plan`.

    With `compile`, the peaks are those of kernels after fusion.
    """
    require_torch()
    from graphc.torch.budget.make_step import planned

    knee = TorchPlanOptions(**vars(options), budget="knee")
    return planned(knee, is_compiled=False).report.frontier


def audit(
    module: torch.nn.Module,
    args: Sequence[Any],
    partition_fn: str | Callable[..., Any] = "min-cut",
    *,
    activation_memory_budget: float | None = None,
    loss_fn: Callable[..., Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Audit:
    """Return the peak, the recomputations and the faults of another partitioner's graphs.

    `partition_fn` splits the joint graph of a step, as for ``aot_autograd``. It is a function, or
    the name of one of torch's: ``min-cut``, ``default`` (which recomputes nothing), or
    ``checkpoint`` (which recomputes what ``torch.utils.checkpoint`` marks in the module). It runs
    under `activation_memory_budget`, a fraction from 0 to 1, if given. The other arguments are
    those of `plan`. No step runs.

    Raises `TorchError` for modules that cannot be planned and for graphs that cannot run, and
    `OptionError` for wrong arguments.
    """
    require_torch()
    from graphc.torch.budget.audit import audited

    return audited(module, *as_call(args, kwargs), partition_fn, activation_memory_budget, loss_fn)


def partition_fn(budget: int | str) -> Callable[..., Any]:
    """Return a ``partition_fn`` for ``aot_autograd``.

    Experimental: the budget bounds the tensors of the graph, which are parameters, inputs,
    activations and gradients. The plan does not account for fusion or buffers of other compilers.
    Raises `OptionError` without a budget.
    """
    require_torch()
    from graphc.torch.budget.goal import partition_fn

    return partition_fn(budget)
