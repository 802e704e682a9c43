"""Arguments that commands share."""

from __future__ import annotations

import argparse
import ast
import inspect
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol

from graphc import files
from graphc.compiler.options import GOALS, PlanOptions, StepOptions
from graphc.errors import OptionError, did_you_mean, given_twice, quoted, whole_number
from graphc.keywords import Option, Options, declared
from graphc.optim import OPTIMIZERS
from graphc.training.recipe import Recipe

if TYPE_CHECKING:
    from graphc.cli.parser import Parser

    Commands = argparse._SubParsersAction[Parser]


STEPS = 10_000
"""Default number of steps of a planned run, on which learning-rate schedules depend."""


class _Parser(Protocol):
    """The part of argparse's parsers and argument groups that functions here use."""

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action: ...


def add_options(
    parser: _Parser, kind: type[Options], names: Sequence[str], **defaults: object
) -> None:
    """Add options of a class by their flags; `defaults` replace the defaults of the class."""
    for name in names:
        option = declared(kind)[name]
        add_option(parser, name, option, defaults.get(name, option.default))


def add_option(
    parser: _Parser, name: str, option: Option[Any], default: object, **settings: Any
) -> None:
    """Add an option to a parser by its flag.

    `settings` are further arguments of argparse's `add_argument`.
    """
    flag = option.flag
    assert flag is not None, "only options with a flag are for the command line"
    given = {"metavar": flag.metavar, "type": flag.parse, "action": flag.action}
    parser.add_argument(
        flag.name or f"--{name.replace('_', '-')}",
        dest=name,
        default=default,
        help=option.filled(flag.help, default or flag.unset),
        **{key: value for key, value in given.items() if value is not None},
        **settings,
    )


def add_strategy(parser: argparse.ArgumentParser) -> None:
    """Add the options for memory planning."""
    add_options(parser, PlanOptions, ("allocate", "recompute", "dump"))
    add_order(parser)
    group = parser.add_argument_group("recomputation by budget, at most one")
    add_options(group, PlanOptions, GOALS)
    group = parser.add_argument_group("host memory")
    add_options(group, PlanOptions, ("host_budget", "host_states"))
    add_costs(parser)


def add_order(parser: argparse.ArgumentParser) -> None:
    """Add the options for the execution of nodes.

    They are order, fusion, kernels, streams and overlap with copies.
    """
    add_options(parser, PlanOptions, ("reorder", "fuse", "kernels", "streams", "overlap_copies"))


def add_costs(parser: argparse.ArgumentParser) -> None:
    """Add the options for the costs of nodes."""
    add_options(parser, PlanOptions, ("costs", "roofline"))


def check_writable(path: str) -> None:
    """Raise `OptionError` if `path` cannot be written, before any work is done."""
    files.check_writable(path, OptionError)


def add_recipe(
    parser: argparse.ArgumentParser, default: Recipe, extra_optimizers: tuple[str, ...] = ()
) -> None:
    """Add the options of a training recipe, with the values of `default`."""
    group = parser.add_argument_group("training step")
    optimizers = replace(declared(Recipe)["optimizer"], choices=(*OPTIMIZERS, *extra_optimizers))
    add_option(group, "optimizer", optimizers, default.optimizer, choices=optimizers.choices)
    names = ("learning_rate", "schedule", "warmup", "weight_decay", *declared(StepOptions))
    add_options(group, Recipe, names, **{name: getattr(default, name) for name in names})
    group.set_defaults(warmup=None)  # so that a command can detect if it was given


def add_steps(parser: argparse.ArgumentParser) -> None:
    """Add the option for the number of steps of a planned run."""
    parser.add_argument(
        "--steps", type=int, metavar="N",
        help=f"steps of the run, for schedules (default: {STEPS})",
    )  # fmt: skip


def recipe(options: argparse.Namespace) -> Recipe:
    """Return the requested recipe; raises `OptionError` for options without effect."""
    chosen = {name: getattr(options, name) for name in declared(Recipe) if hasattr(options, name)}
    made = Recipe(**{**chosen, "warmup": options.warmup or 0})
    _check_useful(options, made)
    return made


def planned_steps(options: argparse.Namespace, made: Recipe) -> int:
    """Return the number of steps of the planned run.

    Raises `OptionError` if the number is given but has no effect.
    """
    given = getattr(options, "steps", None)
    if given is None:
        return STEPS
    steps = whole_number("--steps", given)
    if made.optimizer == "none":
        _refuse(["--steps"], "--optimizer none")
    if not made.is_scheduled:
        _refuse(["--steps"], "a constant learning rate: give --schedule or --warmup")
    return steps


def _check_useful(options: argparse.Namespace, made: Recipe) -> None:
    """Raise `OptionError` for given options that do not change the plan."""
    if made.optimizer == "none":
        asked = {
            "--learning-rate": made.learning_rate is not None,
            "--weight-decay": made.weight_decay is not None,
            "--schedule": made.schedule != "constant",
            "--warmup": options.warmup is not None,
        }
        _refuse([name for name, is_given in asked.items() if is_given], "--optimizer none")
    if not made.reorder and made.allocate != "packed":
        _refuse(["--keep-order"], f"--allocate {made.allocate}, which keeps it anyway")


def _refuse(names: Sequence[str], why: str) -> None:
    if names:
        has, it = ("has", "it") if len(names) == 1 else ("have", "them")
        raise OptionError(f"{', '.join(names)} {has} no effect with {why}; leave {it} out")


def parse_settings(entries: Sequence[str], any_key: bool = False) -> dict[str, Any]:
    """Parse ``key=value`` pairs; values are Python literals, or else strings.

    Keys must be Python identifiers, unless `any_key` is true.
    """
    settings: dict[str, Any] = {}
    for entry in entries:
        key, separator, value = entry.partition("=")
        if not separator or not key or not (any_key or key.isidentifier()):
            raise OptionError(f"{quoted(entry)} is not of the form key=value, such as batch=8")
        found: Any = value
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            found = ast.literal_eval(value)
        if settings.setdefault(key, found) != found:
            raise OptionError(f"{key} {given_twice(settings[key], found)}")
    return settings


def check_settings(
    name: str,
    function: Callable[..., Any],
    settings: dict[str, Any],
    allowed: Sequence[str] = (),
) -> None:
    """Raise `OptionError` for invalid settings of a function.

    A setting is invalid if its name is not in `allowed`, by default the function's parameters, or
    if its value has a wrong type.
    """
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    known = allowed or tuple(parameters)
    for key, value in settings.items():
        if key not in known:
            near = did_you_mean(key, known, before="; ")
            raise OptionError(
                f"{name} has no setting {quoted(key)}; it takes {', '.join(known)}{near}"
            )
        annotation = str(parameters[key].annotation)
        if annotation.startswith("Sequence") and not isinstance(value, tuple | list):
            raise OptionError(f"{name}: {key} must be a list such as (2,3,4), got {quoted(value)}")
        wanted = {str(parameters[key].annotation), type(parameters[key].default).__name__}
        if wanted & {"int", "int | None"} and (type(value) is not int or value < 1):
            raise OptionError(f"{name}: {key} must be an integer >= 1, got {quoted(value)}")
        if "float" in wanted and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise OptionError(f"{name}: {key} must be a number, got {quoted(value)}")
