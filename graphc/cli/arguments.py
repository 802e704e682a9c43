"""Arguments that commands share."""

from __future__ import annotations

import argparse
import ast
import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphc.errors import OptionError
from graphc.ir.device import DEVICES
from graphc.ops.learning_rate import FORMS
from graphc.optim import OPTIMIZERS
from graphc.plans.memory_plan import ALLOCATE, PRECISIONS, RECOMPUTE
from graphc.training.recipe import Recipe

if TYPE_CHECKING:
    Commands = argparse._SubParsersAction[argparse.ArgumentParser]


def add_strategy(parser: argparse.ArgumentParser) -> None:
    """Add the options that say how memory is planned."""
    parser.add_argument(
        "--allocate", default="packed", metavar="A", help=f"{', '.join(ALLOCATE)} (default: packed)"
    )
    parser.add_argument(
        "--recompute", default="none", metavar="P", help=f"{', '.join(RECOMPUTE)} (default: none)"
    )
    parser.add_argument("--dump", metavar="DIR", help="write the graph after every pass")
    add_order(parser)
    group = parser.add_argument_group("recomputation by budget, at most one")
    group.add_argument(
        "--budget", metavar="B", help="bytes of the whole arena, such as 7GiB: least time within it"
    )
    group.add_argument(
        "--feature-map-budget", metavar="B", help="the same for the paper's measure of bytes"
    )
    group.add_argument(
        "--max-extra-flops", type=float, metavar="F",
        help="part of a step's flops, such as 0.33: fewest bytes within it",
    )  # fmt: skip
    add_costs(parser)


def add_order(parser: argparse.ArgumentParser) -> None:
    """Add the options that let nodes run in another order, and in groups."""
    parser.add_argument(
        "--keep-order", dest="reorder", action="store_false",
        help="run nodes as they were made, even where another order takes fewer bytes",
    )  # fmt: skip
    parser.add_argument(
        "--fuse", action=argparse.BooleanOptionalAction,
        help="groups of elementwise nodes as one kernel each (default: on a GPU only)",
    )  # fmt: skip


def add_costs(parser: argparse.ArgumentParser) -> None:
    """Add the options that say what plans take nodes to cost."""
    parser.add_argument(
        "--costs", metavar="FILE", help="plan with times that `graphc profile` has measured"
    )
    parser.add_argument(
        "--roofline", metavar="NAME",
        help=f"peaks that give times: {', '.join(DEVICES)} (default: the device's)",
    )  # fmt: skip


def add_device(parser: argparse.ArgumentParser, choices: str) -> None:
    """Add the option that says which device a plan is for."""
    parser.add_argument("--device", default="cpu", metavar="D", help=f"{choices} (default: cpu)")


def check_writable(path: str) -> None:
    """Raise `OptionError` where a file cannot be written at `path`, before the work is done."""
    if Path(path).is_dir() or not os.access(Path(path).resolve().parent, os.W_OK):
        raise OptionError(
            f"cannot save to {path!r}: it is a folder, or its folder is missing or not writable"
        )


def add_recipe(
    parser: argparse.ArgumentParser, default: Recipe, extra_optimizers: tuple[str, ...] = ()
) -> None:
    """Add the options that say how a step trains; the `default` recipe has what is left out."""
    group = parser.add_argument_group("training step")
    names = ", ".join((*OPTIMIZERS, *extra_optimizers))
    group.add_argument(
        "--optimizer", choices=(*OPTIMIZERS, *extra_optimizers), default=default.optimizer,
        metavar="O", help=f"{names} (default: {default.optimizer})",
    )  # fmt: skip
    rate = "the optimizer's" if default.learning_rate is None else default.learning_rate
    group.add_argument(
        "--learning-rate", type=float, default=default.learning_rate, metavar="R",
        help=f"largest learning rate (default: {rate})",
    )  # fmt: skip
    group.add_argument(
        "--schedule", default=default.schedule, metavar="S",
        help=f"{', '.join(FORMS)} (default: {default.schedule})",
    )  # fmt: skip
    group.add_argument(
        "--warmup", type=int, default=None, metavar="N",
        help=f"steps in which the rate rises (default: {default.warmup or 'none'})",
    )  # fmt: skip
    group.add_argument(
        "--weight-decay", type=float, default=default.weight_decay, metavar="D",
        help="default: the optimizer's",
    )  # fmt: skip
    clip = "no limit" if default.clip_norm is None else default.clip_norm
    group.add_argument(
        "--clip-norm", type=float, default=default.clip_norm, metavar="C",
        help=f"largest norm of all gradients together (default: {clip})",
    )  # fmt: skip
    group.add_argument(
        "--accumulate", type=int, default=1, metavar="K", help="micro-batches a step (default: 1)"
    )
    group.add_argument(
        "--precision", default="fp32", metavar="P",
        help=f"of feature maps: {', '.join(PRECISIONS)} (default: fp32)",
    )  # fmt: skip


def add_steps(parser: argparse.ArgumentParser) -> None:
    """Add the option that says how long a run is that is only planned."""
    parser.add_argument(
        "--steps", type=int, default=10_000, metavar="N",
        help="steps of the run that a schedule is for (default: 10000)",
    )  # fmt: skip


def recipe(options: argparse.Namespace) -> Recipe:
    """The recipe that the user asked for."""
    names = (
        "optimizer", "learning_rate", "schedule", "warmup", "weight_decay", "clip_norm",
        "accumulate", "precision", "recompute", "allocate", "budget", "feature_map_budget",
        "max_extra_flops", "costs", "roofline", "reorder", "fuse", "device",
    )  # fmt: skip
    chosen = {name: getattr(options, name) for name in names if hasattr(options, name)}
    chosen["warmup"] = options.warmup or 0
    return Recipe(**chosen, seed=getattr(options, "seed", 0))


def parse_settings(entries: Sequence[str]) -> dict[str, Any]:
    """``key=value`` pairs; values are Python literals, or else strings."""
    settings: dict[str, Any] = {}
    for entry in entries:
        key, separator, value = entry.partition("=")
        if not separator or not key.isidentifier():
            raise OptionError(f"{entry!r} is not of the form key=value")
        try:
            settings[key] = ast.literal_eval(value)
        except (ValueError, SyntaxError):
            settings[key] = value
    return settings


def check_settings(
    name: str,
    function: Callable[..., Any],
    settings: dict[str, Any],
    allowed: Sequence[str] = (),
) -> None:
    """Names that the function takes, or only the `allowed`; numbers where it wants numbers."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    known = allowed or tuple(parameters)
    for key, value in settings.items():
        if key not in known:
            raise OptionError(f"{name} has no setting {key!r}; it takes {', '.join(known)}")
        annotation = str(parameters[key].annotation)
        if annotation.startswith("Sequence") and not isinstance(value, tuple | list):
            raise OptionError(f"{name}: {key} is a list such as (2,3,4), got {value!r}")
        wanted = {str(parameters[key].annotation), type(parameters[key].default).__name__}
        if wanted & {"int", "int | None"} and (type(value) is not int or value < 1):
            raise OptionError(f"{name}: {key} is a whole number from 1 up, got {value!r}")
        if "float" in wanted and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise OptionError(f"{name}: {key} is a number, got {value!r}")
