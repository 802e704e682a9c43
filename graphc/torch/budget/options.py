"""Options of plans for PyTorch modules, each declared once. This file does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from graphc.errors import OptionError, choose, quoted
from graphc.keywords import Options, option, required, same

if TYPE_CHECKING:
    import torch

Assume = Literal["replan", "raise"]

Unplanned = Literal["raise", "plan"]

Named = Mapping[Any, Mapping[Any, Any]]
"""Maps an input, or a tuple of inputs, to a mapping from a dimension, or a tuple of them."""

Given = tuple[tuple[Any, ...], dict[str, Any]]
"""Positional and keyword arguments of a call."""

PadCall = Callable[[tuple[Any, ...], dict[str, Any], dict[Any, dict[Any, int]]], Given]
"""A function of positional arguments, keyword arguments and a size that returns padded ones."""

Pad = Mapping[str, float | None] | PadCall
"""A number for each input, None for an input that is not padded, or a function that pads."""


MODES = ("default", "max-autotune-no-cudagraphs")
"""Modes of torch.compile without CUDA graphs."""


def _mode(name: str, given: object) -> None:
    """Raise `OptionError` unless `given` is a bool or the name of a mode that can be planned."""
    if given in ("reduce-overhead", "max-autotune"):
        raise OptionError(
            f"{name}={given!r} uses CUDA graphs, whose memory pools exist beside the memory of the "
            f"plan; give True or {MODES[-1]!r}"
        )
    if isinstance(given, str):
        choose(name, given, MODES)
    elif not isinstance(given, bool):
        raise OptionError(
            f"{name} must be True, False or one of {', '.join(MODES)}, got {quoted(given)}"
        )


@dataclass(frozen=True, eq=False)
class CallOptions(Options):
    """The options of one call of a module, which are not part of a goal."""

    module: torch.nn.Module = field(metadata=required("The module."))
    args: Sequence[Any] = field(metadata=required("The positional arguments of one call."))
    _: KW_ONLY
    kwargs: Mapping[str, Any] | None = option(None, "The keyword arguments of the call.")
    loss_fn: Callable[..., Any] | None = option(
        None,
        "A function of output and target. The last of `args` is then a target, and a call returns "
        "``loss_fn(module(*args[:-1], **kwargs), args[-1])``.",
    )
    loss: Callable[..., Any] | str | None = option(
        None,
        "The part of the output that is differentiated: the name of an attribute or key, or a "
        "function of the output. By default it is the attribute ``loss`` if the output has one, "
        "else the whole output. The other tensors are detached. ``loss=lambda out: out`` "
        "differentiates all of them.",
    )
    return_outputs: bool = option(
        True, "False if a call returns only the loss, which `loss` may compute from the output."
    )
    reserve: torch.optim.Optimizer | int | str | None = option(
        None,
        "The state of an optimizer, which the peak includes: the optimizer, or a number of bytes.",
    )
    accumulate: bool = option(False, "True if gradients of earlier steps exist during a step.")
    autocast: torch.dtype | torch.autocast | None = option(
        None, "A dtype or a ``torch.autocast`` that applies to every call."
    )
    device: str | None = option(
        None,
        "The name of a device profile such as ``h100``. Nothing runs then, and the step cannot be "
        "called: costs are estimated for the profile.",
    )

    @property
    def call(self) -> Given:
        """The arguments of the call as a tuple and a dict; raises `OptionError`."""
        return as_call(self.args, self.kwargs)


@dataclass(frozen=True, eq=False)
class GoalOptions(Options):
    """The goal of a plan, and the sizes that are planned ahead."""

    budget: int | str | None = option(
        None,
        'The maximum peak of a step, as bytes or as a string such as ``"7GiB"``. ``"knee"`` is the '
        "knee of the trade-off curve. By default it is the memory of the device, so that no time "
        "is added where all fits.",
    )
    _: KW_ONLY
    host_budget: int | str | None = option(
        None,
        "The host memory to which tensors may be copied, and back. Copies run beside computation "
        "on a GPU, at the rates of the device's profile. The plan is at least as fast, by its "
        "costs, as one that only recomputes.",
    )
    max_extra_time: float | None = option(
        None,
        "Instead of `budget`, the fraction of a step's time that recomputation may add; the plan "
        "has the fewest bytes found within it.",
    )
    compile: bool | str = option(
        False,
        "True if inductor, the compiler of ``torch.compile``, generates the kernels of the step, "
        "or its mode ``max-autotune-no-cudagraphs``. The peak is then that of its kernels after "
        "fusion, and results are those of torch.compile up to rounding.",
        check=_mode,
    )
    sizes: Named | Sequence[Named] | None = option(
        None,
        "Sizes to plan before the first step, each within the budget: a mapping such as "
        '``{{"input_ids": {{1: (64, 128, 512)}}}}`` from inputs to dimensions to lengths, of which '
        'all combinations are planned, or a list of sizes such as ``{{"input_ids": {{1: 64}}}}``. '
        "A tuple of names or of dimensions has one length.",
    )
    dynamic: Named | None = option(
        None,
        'A dimension with a range of lengths, ``{{"input_ids": {{1: (64, 1024)}}}}``, which plans '
        "powers of two and the end of the range; or with the counts of its lengths, from which at "
        "most `max_sizes` sizes are chosen for the least expected time. In models of transformers, "
        "inputs that have the length of a named one follow it.",
    )
    max_sizes: int | None = option(None, "The maximum number of sizes for counts; 6 by default.")
    pad: Pad | None = option(
        None,
        "How a call is padded to the smallest size that holds it: a mapping from inputs to "
        "numbers, where None allows exact lengths only, or a function of args, kwargs and the size "
        "that returns padded args and kwargs. By default, the conventions of transformers. "
        "Outputs have the padded shape.",
    )
    unplanned: Unplanned = option(
        "raise",
        "``raise`` if a call that no size holds raises `TorchError`, ``plan`` if it is planned "
        "with a warning.",
    )


@dataclass(frozen=True, eq=False)
class FrontierOptions(CallOptions):
    """The options of `graphc.torch.frontier`."""

    _: KW_ONLY
    compile: bool | str = same(GoalOptions, "compile")


@dataclass(frozen=True, eq=False)
class BackendOptions(Options):
    """The options of ``torch.compile(module, backend="graphc", options={...})``."""

    budget: int | str | None = same(GoalOptions, "budget")
    max_extra_time: float | None = same(GoalOptions, "max_extra_time")
    reserve: torch.optim.Optimizer | int | str | None = same(CallOptions, "reserve")
    mode: str = option("default", "The mode of torch.compile.", check=_mode)


@dataclass(frozen=True, eq=False)
class TorchPlanOptions(GoalOptions, CallOptions):
    """The options of `graphc.torch.plan`."""

    _: KW_ONLY
    assume: Assume = option(
        "replan",
        "If control flow depends on data, as in ``if labels.max() >= n:``, the plan assumes the "
        "values of the first call, and each step checks them. At another value, ``replan`` starts "
        "the step again with a plan for it, and ``raise`` raises `TorchError`.",
    )


def as_call(args: object, kwargs: object) -> Given:
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
