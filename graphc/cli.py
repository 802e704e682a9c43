"""The command line: graphc plan | compare | train | ops."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import inspect
import json
import os
import sys
import traceback
from collections.abc import Callable, Container, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from rich.text import Text

from graphc.compiler import plan
from graphc.errors import GraphcError, OptionError
from graphc.ir.graph import Value
from graphc.ir.op import REGISTRY, Op
from graphc.ir.plan import ALLOCATE, RECOMPUTE, MemoryPlan
from graphc.ir.plan_text import (
    STEP_COLUMNS,
    format_plan,
    peak_rows,
    shown_steps,
    step_rows,
    summary_rows,
)
from graphc.ir.types import format_bytes
from graphc.models import MODELS
from graphc.optim import SGD, Adam, AdamW, Momentum, Optimizer
from graphc.training.digits import DigitsTraining, Epoch

OPTIMIZERS: dict[str, Callable[[], Optimizer]] = {
    "sgd": SGD,
    "momentum": Momentum,
    "adam": Adam,
    "adamw": AdamW,
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; 0 on success, 2 with a message on stderr for a user's mistake."""
    options = _parser().parse_args(arguments)
    try:
        options.run(options)
    except GraphcError as error:
        print(f"graphc: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # the reader, for example `head`, has seen enough
        sys.stderr.close()
    except OSError as error:
        print(f"graphc: cannot write the output: {error.strerror}", file=sys.stderr)
        return 2
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="graphc", description="Plan every byte of a training step before it runs."
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    planning = commands.add_parser("plan", help="print the memory plan of a model")
    _model_arguments(planning)
    _strategy_arguments(planning)
    planning.add_argument(
        "--optimizer",
        choices=[*OPTIMIZERS, "none"],
        default="sgd",
        help="updates to plan; none plans inference (default: sgd)",
    )
    planning.add_argument("--json", action="store_true", help="one JSON object")
    planning.add_argument("--text", action="store_true", help="plain text with every step")
    planning.add_argument("--dump", metavar="DIR", help="write the graph after every pass")
    planning.set_defaults(run=_plan)

    comparing = commands.add_parser("compare", help="one row for each allocation strategy")
    _model_arguments(comparing)
    comparing.add_argument(
        "--optimizer",
        choices=[*OPTIMIZERS, "none"],
        default="sgd",
        help="updates to plan (default: sgd)",
    )
    comparing.add_argument("--json", action="store_true", help="a list of plan objects")
    comparing.set_defaults(run=_compare)

    training = commands.add_parser("train", help="train on real data")
    training.add_argument("task", choices=["digits"], help="what to train on")
    training.add_argument(
        "settings", nargs="*", metavar="key=value", help="layers, hidden, batch, learning_rate"
    )
    _strategy_arguments(training)
    training.add_argument("--epochs", type=int, default=20, help="passes over the data")
    training.add_argument("--seed", type=int, default=0, help="initial parameters and order")
    training.add_argument("--save", metavar="FILE", help="write the states to a safetensors file")
    training.add_argument("--json", action="store_true", help="one JSON object at the end")
    training.add_argument("--dump", metavar="DIR", help="write the graph after every pass")
    training.set_defaults(run=_train)

    listing = commands.add_parser("ops", help="list the ops and what their gradients read")
    listing.add_argument("--json", action="store_true", help="one JSON object")
    listing.set_defaults(run=_ops)
    return parser


def _model_arguments(parser: argparse.ArgumentParser) -> None:
    names = ", ".join(MODELS)
    parser.add_argument("model", metavar="MODEL", help=f"one of {names}, or file.py:function")
    parser.add_argument("settings", nargs="*", metavar="key=value", help="arguments of the model")


def _strategy_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--allocate", default="packed", metavar="A", help=f"{', '.join(ALLOCATE)} (default: packed)"
    )
    parser.add_argument(
        "--recompute", default="none", metavar="P", help=f"{', '.join(RECOMPUTE)} (default: none)"
    )


# --- models ---


def _settings(entries: Sequence[str]) -> dict[str, Any]:
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


def _build(model: str, entries: Sequence[str]) -> Value:
    settings = _settings(entries)
    function = _find_model(model, settings)
    _check_settings(model, function, settings)
    loss = _call(model, function, settings)
    if not isinstance(loss, Value):
        raise OptionError(f"{model} must return a graphc value, the loss; it returned {loss!r}")
    return loss


def _find_model(model: str, given: Container[str]) -> Callable[..., Any]:
    if model in MODELS:
        return MODELS[model]
    path, separator, name = model.rpartition(":")
    if not separator:
        raise OptionError(
            f"unknown model {model!r}; choose one of: {', '.join(MODELS)}, or give file.py:function"
        )
    if not Path(path).is_file():
        raise OptionError(f"there is no file {path!r}")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise OptionError(f"{path!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    sys.path.insert(0, str(Path(path).resolve().parent))
    _call(path, spec.loader.exec_module, {"module": module})
    function = getattr(module, name, None)
    if not callable(function):
        raise OptionError(f"{path!r} has no function {name!r}")
    required = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    missing = [name for name in required if name not in given]
    if missing:
        raise OptionError(f"{model} needs {', '.join(f'{name}=...' for name in missing)}")
    found: Callable[..., Any] = function
    return found


def _call(what: str, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Run a user's code; what it raises is told with its place, not as a traceback from graphc."""
    try:
        return function(**arguments)
    except GraphcError:
        raise
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{last.filename}, line {last.lineno}"
        if isinstance(error, SyntaxError):
            place = f"{error.filename}, line {error.lineno}"
        raise OptionError(f"{what} failed at {place}: {type(error).__name__}: {error}") from error


def _check_settings(name: str, function: Callable[..., Any], settings: dict[str, Any]) -> None:
    """Names that the function takes, and whole numbers where its default is one."""
    parameters = inspect.signature(function).parameters
    if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
        return
    for key, value in settings.items():
        if key not in parameters:
            raise OptionError(f"{name} has no setting {key!r}; it takes {', '.join(parameters)}")
        default = parameters[key].default
        wanted = type(default)
        if wanted is int and (type(value) is not int or value < 1):
            raise OptionError(f"{name}: {key} is a whole number from 1 up, got {value!r}")
        if wanted is float and not isinstance(value, int | float):
            raise OptionError(f"{name}: {key} is a number, got {value!r}")


# --- commands ---


def _plan(options: argparse.Namespace) -> None:
    memory_plan = plan(
        _build(options.model, options.settings),
        optimizer=_optimizer(options.optimizer),
        recompute=options.recompute,
        allocate=options.allocate,
        dump=options.dump,
    )
    if options.json:
        print(json.dumps(memory_plan.summary(options.model)))
    elif options.text:
        print(format_plan(memory_plan, step_limit=None), end="")
    else:
        _show_plan(memory_plan)


def _optimizer(name: str) -> Optimizer | None:
    return OPTIMIZERS[name]() if name in OPTIMIZERS else None


def _show_plan(memory_plan: MemoryPlan) -> None:
    """Tables and colour on a terminal, the plain printout elsewhere."""
    console = Console()
    if not console.is_terminal:
        print(format_plan(memory_plan), end="")
        return
    head = Table(box=None, show_header=False, title=f"{memory_plan.allocate} plan")
    for label, figure in summary_rows(memory_plan):
        head.add_row(Text(label, "bold"), figure)
    for kind, size in memory_plan.bytes_by_kind.items():
        head.add_row(Text(f"all {kind} bytes", "dim"), format_bytes(size))
    steps = Table(box=None)
    for column in STEP_COLUMNS:
        steps.add_column(column, justify="right" if column in ("step", "bytes", "live") else "left")
    colours = {"new": "red", "reuse": "green", "over": "green", "view": "blue", "state": "dim"}
    for row in step_rows(memory_plan, shown_steps(memory_plan, 60)):
        how = row[STEP_COLUMNS.index("how")]
        cells = [Text(cell) for cell in row]
        cells[STEP_COLUMNS.index("how")].stylize(colours[how.split()[0]])
        steps.add_row(*cells)
    peak = Table(box=None, show_header=False, title=f"peak at step {memory_plan.peak_step}")
    for peak_row in peak_rows(memory_plan):
        peak.add_row(*map(Text, peak_row))
    console.print(head, steps, peak)


def _compare(options: argparse.Namespace) -> None:
    plans = []
    for strategy in ALLOCATE:
        loss = _build(options.model, options.settings)
        plans.append(plan(loss, optimizer=_optimizer(options.optimizer), allocate=strategy))
    if options.json:
        print(json.dumps([found.summary(options.model) for found in plans]))
        return
    table = Table("allocate", "feature maps", "arena", "most live", "gap", "seconds", box=None)
    for found in plans:
        gap = found.arena_bytes / found.live_bytes - 1
        table.add_row(
            found.allocate,
            format_bytes(found.feature_map_bytes),
            format_bytes(found.arena_bytes),
            format_bytes(found.live_bytes),
            f"{gap:.1%}",
            f"{found.planning_seconds:.2f}",
        )
    Console(width=None if sys.stdout.isatty() else 100).print(table)


def _train(options: argparse.Namespace) -> None:
    settings = _settings(options.settings)
    known = ("layers", "hidden", "batch", "learning_rate")
    for key in settings:
        if key not in known:
            raise OptionError(f"digits has no setting {key!r}; it takes {', '.join(known)}")
    _check_settings("digits", DigitsTraining.prepare, settings)
    run = DigitsTraining.prepare(
        recompute=options.recompute,
        allocate=options.allocate,
        seed=options.seed,
        dump=options.dump,
        **settings,
    )
    if options.save and not os.access(Path(options.save).resolve().parent, os.W_OK):
        raise OptionError(f"cannot save to {options.save!r}: its folder is missing or not writable")
    epochs = _show_training(run, options.epochs, quiet=options.json)
    if options.save:
        run.training.save(options.save)
    if options.json:
        history = [{"loss": e.loss, "test_accuracy": e.test_accuracy} for e in epochs]
        print(json.dumps({**run.training.plan.summary("digits"), "epochs": history}))


def _show_training(run: DigitsTraining, count: int, quiet: bool) -> list[Epoch]:
    if count < 1:
        raise OptionError(f"--epochs is a whole number from 1 up, got {count}")
    console = Console(quiet=quiet)
    memory_plan = run.training.plan
    for label, figure in summary_rows(memory_plan):
        console.print(f"{label:<20}{figure}", highlight=False, soft_wrap=True)
    epochs = []
    hidden = quiet or not console.is_terminal
    with Progress(console=console, transient=True, disable=hidden) as progress:
        bar = progress.add_task("training", total=count * run.steps_per_epoch)
        for event in run.epochs(count):
            if not isinstance(event, Epoch):
                progress.advance(bar)
                continue
            epochs.append(event)
            console.print(
                f"epoch {event.number:3d}  loss {event.loss:.6f}  test accuracy "
                f"{event.test_accuracy:.2%}  {event.steps_per_second:.0f} steps/s  arena "
                f"{run.training.arena_bytes} bytes",
                highlight=False,
                soft_wrap=True,
            )
    return epochs


def _ops(options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps({name: _describe(op) for name, op in sorted(REGISTRY.items())}))
        return
    table = Table("op", "inputs", "outputs", "gradient reads", "may overwrite", box=None)
    for name, op in sorted(REGISTRY.items()):
        rules = _describe(op)
        reads = "; ".join(f"{i}: {', '.join(r) or 'nothing'}" for i, r in rules["gradient"].items())
        over = "; ".join(f"{o} over {' or '.join(i)}" for o, i in rules["overwrite"].items())
        table.add_row(name, ", ".join(op.inputs), ", ".join(op.outputs), reads or "-", over)
    Console(width=None if sys.stdout.isatty() else 140).print(table)


def _describe(op: Op) -> dict[str, Any]:
    must = {output: (state,) for output, state in op.must_overwrite.items()}
    return {
        "doc": (type(op).__doc__ or "").splitlines()[0],
        "inputs": op.inputs,
        "outputs": op.outputs,
        "gradient": {name: rule.reads for name, rule in op.gradients.items()},
        "overwrite": {**op.may_overwrite, **must},
        "views": op.views,
    }
