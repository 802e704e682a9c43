"""A check that padding leaves the loss of an example as it is, by two runs without gradients."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from graphc.errors import TorchError
from graphc.torch.budget.options import Given
from graphc.torch.budget.sizes.arguments import Arguments
from graphc.torch.budget.sizes.options import Size, shown
from graphc.torch.budget.trace.restored import random_states, without_effects
from graphc.torch.budget.trace.step import Step

LEAST_SCALE = 0.1
"""A smaller loss may be the sum of larger terms, so its tolerance is that of this loss."""

CURES = (
    "Pass an attention_mask, other numbers or a function as pad=, or a loss that ignores padded "
    "positions. To run planned sizes without padding, pad the batches yourself, or list their "
    "lengths, and pass pad={'x': None} for an input x"
)


def refuse_changed_loss(
    step: Step, arguments: Arguments, example: Given, sizes: Sequence[Size]
) -> None:
    """Raise `TorchError` if padding an example to one of these sizes changes its loss.

    Runs the module twice, without gradients and in evaluation mode, except for batch norms, whose
    statistics count padding. Nothing is checked without a scalar loss, for a module that draws
    random numbers or cannot run this way, and for parameters that are sharded.
    """
    runs = step.step_options.device is None
    if not runs or any(is_traceable_wrapper_subclass(each) for each in step.parameters()):
        return
    found = arguments.cut_and_size(example, sizes)
    if found is None:
        return
    given, size = found
    with torch.no_grad(), without_effects(step, given):
        for each in (step.module, *step.modules()):
            if each is not step and not isinstance(each, nn.modules.batchnorm._BatchNorm):
                each.training = False
        before = dict(random_states())
        try:
            wanted = _losses(step, given)
        except Exception:  # planning the example tells of it
            return
        is_random = any(not before[name].equal(each) for name, each in random_states())
        if is_random or not wanted or not all(map(math.isfinite, wanted)):
            return
        padded = arguments.resized(given, size)
        try:
            changed = _losses(step, padded)
        except torch.OutOfMemoryError:
            return
        except Exception as error:
            raise TorchError(
                f"the module raises {type(error).__name__}({str(error)!r}) for the example padded "
                f"to {shown(size)}, but not for the example; pad= must give numbers that the "
                "module accepts"
            ) from error
    tolerance = _tolerance(step)
    for one, other in zip(wanted, changed, strict=False):
        if not abs(one - other) <= tolerance * max(abs(one), abs(other), LEAST_SCALE):
            raise TorchError(
                f"padding changes the loss of this module: the example has the loss {one:.8g}, and "
                f"{other:.8g} if it is padded to {shown(size)}. {CURES}"
            )


def _losses(step: Step, given: Given) -> list[float]:
    """Return the scalars that a call differentiates."""
    args, kwargs = given
    found = step.step_options.loss.of_result(step.unplanned(*args, **kwargs))
    scalars = (each for each in tree_leaves(found) if isinstance(each, torch.Tensor))
    return [float(each) for each in scalars if each.ndim == 0 and each.is_floating_point()]


def _tolerance(step: Step) -> float:
    """Return the relative difference that the order of sums may cause in a loss."""
    dtypes = {each.dtype for each in step.parameters() if each.is_floating_point()}
    if step.step_options.autocast is not None or any(dtype.itemsize < 4 for dtype in dtypes):
        return 2e-2
    is_on_gpu = any(each.is_cuda for each in step.parameters())
    if is_on_gpu and torch.float32 in dtypes and _may_use_tf32():
        return 2e-3
    return 1e-5  # models in float64 may compute their loss in float32


def _may_use_tf32() -> bool:
    is_less = torch.get_float32_matmul_precision() != "highest"
    return is_less or bool(torch.backends.cudnn.allow_tf32)
