"""Creation of planned steps from the options of `graphc.torch.plan`."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import nn

from graphc.devices.device import Device
from graphc.errors import OptionError, TorchError, quoted
from graphc.torch.budget.goal import Goal
from graphc.torch.budget.options import TorchPlanOptions
from graphc.torch.budget.sizes.ahead import Sizes
from graphc.torch.budget.sizes.options import Requested
from graphc.torch.budget.step import PlannedStep
from graphc.torch.budget.trace.backend import without_compile
from graphc.torch.budget.trace.held import reserve_bytes
from graphc.torch.budget.trace.refusals import refuse_parts
from graphc.torch.budget.trace.settings import Autocast, Loss
from graphc.torch.budget.trace.step import StepOptions
from graphc.torch.budget.trace.without_data import on_profile
from graphc.torch.versions import is_before


def planned(options: TorchPlanOptions, is_compiled: bool = True) -> PlannedStep:
    """Return a planned step; implements `graphc.torch.plan`.

    Unless `is_compiled`, it has a report and cannot run.
    """
    args, kwargs = options.call
    refuse_call(options.module, options.loss_fn, args)
    given = without_compile(options.module), options.loss_fn, args, kwargs
    profile, (module, loss_fn, args, kwargs) = on_profile(options.device, given)
    step = _to_plan(replace(options, module=module, loss_fn=loss_fn), profile)
    step.plan(args, kwargs, is_compiled)
    return step


def to_plan(options: TorchPlanOptions) -> PlannedStep:
    """Return a step that is planned at its first call, so `args` and `kwargs` are not read."""
    refuse_call(options.module, options.loss_fn)
    return _to_plan(replace(options, module=without_compile(options.module)))


def _to_plan(options: TorchPlanOptions, profile: Device | None = None) -> PlannedStep:
    requested = Requested.of(options)
    goal = Goal(options.budget, options.max_extra_time, options.host_budget, options.compile)
    if options.compile:
        refuse_compiled(requested is not None, profile is not None)
    of_step = StepOptions(
        Loss.of(options.loss, options.return_outputs),
        reserve_bytes(options.reserve),
        options.accumulate,
        Autocast.of(options.autocast, options.module, profile is not None),
        profile,
        bool(options.compile),
    )
    sizes = None if requested is None else Sizes(requested)
    return PlannedStep(options.module, options.loss_fn, goal, of_step, options.assume, sizes)


def refuse_compiled(has_sizes: bool, is_on_profile: bool) -> None:
    """Raise an error if steps cannot be compiled with these options, or this version of torch."""
    if is_before(torch.__version__, COMPILES):
        raise TorchError(
            f"compile=True needs torch {'.'.join(map(str, COMPILES))} or newer, and this is "
            f"{torch.__version__}"
        )
    if has_sizes:
        raise OptionError(
            "compile=True does not support sizes planned ahead; leave out sizes and dynamic, and "
            "each new size is planned and compiled at its first call"
        )
    if is_on_profile:
        raise OptionError(
            "compile=True generates code for the tensors' own device, so it needs tensors with "
            "data and no device profile; leave out compile to plan without running"
        )


COMPILES = (2, 11)
"""The first release of torch whose inductor takes a partition and an order."""


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
