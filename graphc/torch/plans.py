"""Public functions of plans for torch's own training; torch is imported when they are called."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from graphc.errors import OptionError
from graphc.torch.versions import require_torch

if TYPE_CHECKING:
    import torch

    from graphc.torch.step import PlannedStep
    from graphc.torch.trade_off import Frontier


def plan(
    module: torch.nn.Module,
    args: Sequence[Any],
    budget: int | str | None = None,
    *,
    max_extra_time: float | None = None,
    loss_fn: Callable[..., Any] | None = None,
    reserve: torch.optim.Optimizer | int | str | None = None,
    accumulate: bool = False,
    kwargs: Mapping[str, Any] | None = None,
) -> PlannedStep:
    """A module whose steps keep to a peak that is known before the first one.

    `args` and `kwargs` are the arguments of one call. `budget` bounds the peak of a whole step:
    parameters, buffers, inputs, activations, workspaces, gradients, and what is kept for `reserve`,
    an optimizer or a number of bytes. With `accumulate`, gradients of earlier steps are there, too.
    Or `max_extra_time` says which part of a step's time may be added, and the fewest bytes within
    it are planned; without either, the knee of bytes against time. With `loss_fn`, the last of
    `args` is a target, and a call returns ``loss_fn(module(*args[:-1], **kwargs), args[-1])``.

    Parameters, ``.grad`` and the optimizer stay torch's; gradients, buffers and random numbers are
    those of the module without a plan, to the bit. Another shape is planned when it comes.

    Raises `BudgetError`, before anything has run, where no plan fits: it names the least found and
    the modules at its peak; `TorchError` for what cannot be planned; `OptionError`.
    """
    require_torch()
    from graphc.torch.step import planned

    given = _arguments(args, kwargs)
    return planned(module, *given, budget, max_extra_time, loss_fn, reserve, accumulate)


def frontier(
    module: torch.nn.Module,
    args: Sequence[Any],
    *,
    loss_fn: Callable[..., Any] | None = None,
    reserve: torch.optim.Optimizer | int | str | None = None,
    accumulate: bool = False,
    kwargs: Mapping[str, Any] | None = None,
) -> Frontier:
    """Peaks and extra time, from the most bytes to the fewest; arguments are those of `plan`."""
    require_torch()
    from graphc.torch.step import frontier

    return frontier(module, *_arguments(args, kwargs), loss_fn, reserve, accumulate)


def partition_fn(budget: int | str) -> Callable[..., Any]:
    """A ``partition_fn`` for people's own ``aot_autograd``, or inductor's custom partitioner.

    Experimental: the budget bounds what the graph itself holds, its parameters, inputs,
    activations and gradients. What another compiler fuses or keeps is not known to the plan.
    Raises `OptionError` without a budget.
    """
    require_torch()
    from graphc.torch.planned import partition_fn

    return partition_fn(budget)


def _arguments(args: object, kwargs: object) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a call as they are given on; raises `OptionError` for what are none."""
    if not isinstance(args, tuple | list):
        raise OptionError(
            "args is a tuple of the module's arguments, such as (x,) or (x, labels), got "
            f"{type(args).__name__}"
        )
    if kwargs is not None and not isinstance(kwargs, Mapping):
        raise OptionError(
            f"kwargs maps names of the module's arguments to them, got {type(kwargs).__name__}"
        )
    return tuple(args), dict(kwargs or {})
