"""Public functions that plan training steps of torch; they import torch when called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from graphc.errors import OptionError
from graphc.torch.versions import require_torch

if TYPE_CHECKING:
    import torch

    from graphc.torch.budget.audit import Audit
    from graphc.torch.budget.plan.trade_off import Frontier
    from graphc.torch.budget.sizes.options import Named, Pad
    from graphc.torch.budget.step import PlannedStep


def plan(
    module: torch.nn.Module,
    args: Sequence[Any],
    budget: int | str | None = None,
    *,
    host_budget: int | str | None = None,
    max_extra_time: float | None = None,
    loss_fn: Callable[..., Any] | None = None,
    reserve: torch.optim.Optimizer | int | str | None = None,
    accumulate: bool = False,
    loss: Callable[..., Any] | str | None = None,
    return_outputs: bool = True,
    autocast: torch.dtype | torch.autocast | None = None,
    kwargs: Mapping[str, Any] | None = None,
    device: str | None = None,
    assume: Literal["replan", "raise"] = "replan",
    sizes: Named | Sequence[Named] | None = None,
    dynamic: Named | None = None,
    max_sizes: int | None = None,
    pad: Pad | None = None,
    unplanned: Literal["raise", "plan"] = "raise",
) -> PlannedStep:
    """Return a module whose training steps follow a memory plan with a known peak.

    `args` and `kwargs` are the arguments of one call. `budget` bounds the peak of a whole step:
    parameters, buffers, inputs, activations, workspaces, gradients, and `reserve`, the state of an
    optimizer or a number of bytes. With `accumulate`, gradients of earlier steps count as well.
    With `host_budget`, a number of bytes of host memory, tensors may also be copied there and back.
    Copies run beside computation on a GPU, at the rates of the device's profile. The plan is at
    least as fast, by its costs, as one that only recomputes. Alternatively to `budget`,
    `max_extra_time` is the fraction of a step's time that recomputation may add; the plan has the
    fewest bytes found within it. With ``budget="knee"``, the plan is the knee of the trade-off
    curve. Without any of them, the budget is the memory of the device, so that no time is added
    where all fits.

    With `loss_fn`, the last of `args` is a target, and a call returns
    ``loss_fn(module(*args[:-1], **kwargs), args[-1])``.

    Only the loss is differentiated: the attribute ``loss`` of the output if it has one, the
    attribute or key that `loss` names, or the tensors that the function `loss` of the output
    returns. The other tensors of the output are detached. ``loss=lambda out: out`` differentiates
    all of them. With ``return_outputs=False`` a call returns only the loss, which the function may
    compute from the output. `autocast`, a dtype or a ``torch.autocast``, applies to every call.

    The step has the class, the attributes and the ``state_dict`` of the module.
    Parameters, ``.grad`` and the optimizer remain those of torch. Gradients, buffers and random
    numbers are bitwise equal to those of the module compiled with ``backend="aot_eager"``, where
    its kernels are deterministic. A call with a new shape makes a new plan.

    If tensors are on the meta device or of a `FakeTensorMode`, or with `device`, the name of a
    device profile such as ``h100``, nothing runs: costs are estimated for the profile, by default
    that of an H200, without workspaces. The step then has a report and cannot be called.

    If control flow depends on data, as in ``if labels.max() >= n:``, the plan assumes the values
    of the first call, and each step checks them. At another value, the step starts again with a
    plan for it, or raises `TorchError` with ``assume="raise"``.

    `sizes` plans several sizes before the first step, each within the budget: a mapping such as
    ``{"input_ids": {1: (64, 128, 512)}}`` from inputs to dimensions to lengths, of which all
    combinations are planned, or a list of sizes such as ``{"input_ids": {1: 64}}``. A tuple of
    names or of dimensions has one length. `dynamic` maps a dimension to a range of lengths,
    ``{"input_ids": {1: (64, 1024)}}``, which plans powers of two and the end of the range. Or it
    maps the dimension to the counts of its lengths, from which at most `max_sizes` sizes (6 by
    default) are chosen for the least expected time. In models of transformers, inputs that have the
    length of a named one follow it.

    A call runs the smallest size that holds its arguments, padded by the conventions of
    transformers, by the numbers that `pad` maps names of inputs to, or by a function `pad` of args,
    kwargs and the size that returns padded args and kwargs; None instead of a number allows exact
    lengths only. Raises `TorchError` before planning if padding changes the loss of the example, in
    evaluation mode. Outputs have the padded shape. A call
    that no size holds raises `TorchError`; with ``unplanned="plan"`` it is planned with a warning.

    Raises `BudgetError` if no plan fits, before the step runs; the error names the least peak found
    and the modules at that peak. Raises `TorchError` for modules that cannot be planned, and
    `OptionError` for wrong arguments.
    """
    require_torch()
    from graphc.torch.budget.make_step import planned

    return planned(
        module,
        *_arguments(args, kwargs),
        device=device,
        budget=budget,
        host_budget=host_budget,
        max_extra_time=max_extra_time,
        loss_fn=loss_fn,
        reserve=reserve,
        accumulate=accumulate,
        loss=loss,
        return_outputs=return_outputs,
        autocast=autocast,
        assume=assume,
        sizes=sizes,
        dynamic=dynamic,
        max_sizes=max_sizes,
        pad=pad,
        unplanned=unplanned,
    )


def frontier(
    module: torch.nn.Module,
    args: Sequence[Any],
    *,
    loss_fn: Callable[..., Any] | None = None,
    reserve: torch.optim.Optimizer | int | str | None = None,
    accumulate: bool = False,
    loss: Callable[..., Any] | str | None = None,
    return_outputs: bool = True,
    autocast: torch.dtype | torch.autocast | None = None,
    kwargs: Mapping[str, Any] | None = None,
    device: str | None = None,
) -> Frontier:
    """Return peaks and extra times, from the most bytes to the fewest; arguments as in `plan`."""
    require_torch()
    from graphc.torch.budget.make_step import planned

    step = planned(
        module,
        *_arguments(args, kwargs),
        budget="knee",
        device=device,
        loss_fn=loss_fn,
        reserve=reserve,
        accumulate=accumulate,
        loss=loss,
        return_outputs=return_outputs,
        autocast=autocast,
    )
    return step.report.frontier


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

    given = _arguments(args, kwargs)
    return audited(module, *given, partition_fn, activation_memory_budget, loss_fn)


def partition_fn(budget: int | str) -> Callable[..., Any]:
    """Return a ``partition_fn`` for ``aot_autograd``, or for inductor's custom partitioner.

    Experimental: the budget bounds the tensors of the graph, which are parameters, inputs,
    activations and gradients. The plan does not account for fusion or buffers of other compilers.
    Raises `OptionError` without a budget.
    """
    require_torch()
    from graphc.torch.budget.goal import partition_fn

    return partition_fn(budget)


def _arguments(args: object, kwargs: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a call as a tuple and a dict; raises `OptionError`."""
    if not isinstance(args, tuple | list):
        raise OptionError(
            "args must be a tuple of the module's arguments, such as (x,) or (x, labels), got "
            f"{type(args).__name__}"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise OptionError(
            "kwargs must map names of arguments of the module to values, got "
            f"{type(kwargs).__name__}"
        )
    return tuple(args), dict(kwargs or {})
