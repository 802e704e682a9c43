"""Creation of planned steps from the options of `graphc.torch.plan`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from graphc.devices.device import Device
from graphc.errors import OptionError, quoted, truth
from graphc.torch.budget.goal import Goal
from graphc.torch.budget.sizes.ahead import Sizes
from graphc.torch.budget.sizes.options import Requested
from graphc.torch.budget.step import PlannedStep
from graphc.torch.budget.trace.assumptions import Assume
from graphc.torch.budget.trace.backend import without_compile
from graphc.torch.budget.trace.held import reserve_bytes
from graphc.torch.budget.trace.refusals import refuse_parts
from graphc.torch.budget.trace.settings import Autocast, Loss
from graphc.torch.budget.trace.step import StepOptions
from graphc.torch.budget.trace.without_data import on_profile


def planned(
    module: nn.Module,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    loss_fn: Callable[..., Any] | None = None,
    device: str | None = None,
    **options: Any,
) -> PlannedStep:
    """Return a planned step; implements `graphc.torch.plan`."""
    refuse_call(module, loss_fn, args)
    module = without_compile(module)
    profile, (module, loss_fn, args, kwargs) = on_profile(device, (module, loss_fn, args, kwargs))
    step = _to_plan(module, loss_fn=loss_fn, device=profile, **options)
    step.plan(args, kwargs)
    return step


def to_plan(module: nn.Module, *args: Any, **options: Any) -> PlannedStep:
    """Return a step that is planned at its first call; options as in `graphc.torch.plan`."""
    refuse_call(module, None)
    return _to_plan(without_compile(module), *args, **options)


def _to_plan(
    module: nn.Module,
    budget: int | str | None = None,
    max_extra_time: float | None = None,
    loss_fn: Callable[..., Any] | None = None,
    reserve: torch.optim.Optimizer | int | str | None = None,
    accumulate: bool = False,
    loss: Callable[..., Any] | str | None = None,
    return_outputs: bool = True,
    autocast: torch.dtype | torch.autocast | None = None,
    assume: Assume = "replan",
    device: Device | None = None,
    host_budget: int | str | None = None,
    **size_options: Any,
) -> PlannedStep:
    refuse_call(module, loss_fn)
    requested = Requested.of(**size_options)
    goal = Goal(budget, max_extra_time, host_budget)
    options = StepOptions(
        Loss.of(loss, return_outputs),
        reserve_bytes(reserve),
        truth("accumulate", accumulate),
        Autocast.of(autocast, module, device is not None),
        device,
    )
    sizes = None if requested is None else Sizes(requested)
    return PlannedStep(module, loss_fn, goal, options, assume, sizes)


def refuse_call(module: object, loss_fn: object, args: tuple[Any, ...] | None = None) -> None:
    """Raise `OptionError` for an object that is not a module, or a loss that cannot be called.

    `args` are the arguments of the call, if known.
    """
    if loss_fn is not None and not callable(loss_fn):
        raise OptionError(f"loss_fn must be a function of output and target, got {quoted(loss_fn)}")
    if loss_fn is not None and args == ():
        raise OptionError("with loss_fn, the last of args must be the target, got no args")
    if not isinstance(module, nn.Module):
        raise OptionError(f"module must be a torch.nn.Module, got {type(module).__name__}")
    refuse_parts(module, PlannedStep)
