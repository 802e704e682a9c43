"""The command ``graphc models``, and the networks that MODEL and key=value of commands name."""

from __future__ import annotations

import argparse
import ast
import importlib.util
import inspect
import json
import sys
from collections.abc import Callable, Collection, Container, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table

from graphc.cli import torch_model
from graphc.cli.arguments import check_settings, parse_settings
from graphc.cli.onnx_model import SUFFIX, loss_of, onnx_model, read
from graphc.cli.terminal import WIDTH, Console, say
from graphc.cli.torch_model import ASKED, is_called_module, module_loss
from graphc.errors import GraphcError, OptionError, did_you_mean, place_of, quoted
from graphc.importing.network import Network
from graphc.ir.builder import at_most, trace
from graphc.ir.graph import Value
from graphc.models import MODELS

if TYPE_CHECKING:
    from graphc.cli.arguments import Commands

MOST_NODES = 250_000
"""Maximum number of nodes and parameters of a network that a command builds."""


def add(commands: Commands) -> None:
    """Register the command."""
    parser = commands.add_parser("models", help="list the models, their arguments and defaults")
    parser.add_argument("--json", action="store_true", help="one JSON object")
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> None:
    """Print the table of models."""
    found = {name: _describe(name) for name in MODELS}
    if options.json:
        say(json.dumps(found, default=str))
        return
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column("model", no_wrap=True)
    table.add_column("parameters", justify="right", no_wrap=True)
    table.add_column("arguments and their defaults")
    for name, model in found.items():
        arguments = (f"{key}={value}".replace(" ", "") for key, value in model["arguments"].items())
        table.add_row(name, f"{model['parameters']:,}", " ".join(arguments))
    Console(width=WIDTH).print(table)


def _describe(name: str) -> dict[str, Any]:
    """Return the first line of the model's docstring, its arguments, and its parameter count."""
    states = trace({"loss": build(name, [])}).states
    return {
        "doc": (MODELS[name].__doc__ or "").splitlines()[0],
        "arguments": arguments_of(name, []),
        "parameters": sum(state.type.elements for state in states if state.trainable),
    }


def add_model(parser: argparse.ArgumentParser, *others: str, is_optional: bool = False) -> None:
    """Add MODEL and its settings; `others` describes further kinds of MODEL for the help."""
    named = f"one of {', '.join(MODELS)}, or file.py:function, or file.onnx"
    kinds = "; or ".join([named, *others])
    parser.add_argument("model", metavar="MODEL", nargs="?" if is_optional else None, help=kinds)
    parser.add_argument(
        "settings", nargs="*", default=[], metavar="key=value",
        help="arguments of the model, or open dimensions of an ONNX file",
    )  # fmt: skip
    add_loss(parser)


def add_loss(parser: argparse.ArgumentParser) -> None:
    """Add the options of a network from a file, which `with_flags` converts into settings."""
    group = parser.add_argument_group("of an ONNX file, or of a module of torch")
    group.add_argument(
        "--loss", metavar="LOSS",
        help="cross_entropy, mse, or an output (default: the scalar output)",
    )  # fmt: skip
    group.add_argument("--trainable", metavar="REGEX", help="train the weights whose names match")


def with_flags(options: argparse.Namespace) -> list[str]:
    """Return the settings, including those from flags of a network from a file."""
    return [*options.settings, *flag_settings(options)]


def flag_settings(options: argparse.Namespace) -> list[str]:
    """Return the settings from flags of a network from a file."""
    given = {name: getattr(options, name, None) for name in ("loss", "trainable")}
    return [f"{name}={value}" for name, value in given.items() if value is not None]


def build(model: str, entries: Sequence[str]) -> Value:
    """Return the loss of a built-in network, or of a network from a file."""
    settings = _parsed(model, entries)
    with at_most(MOST_NODES):
        made, asked = _made_by(model, settings)
        if is_called_module(made):
            return module_loss(model, made, asked)
    return _checked_loss(model, made)


def build_with_weights(model: str, entries: Sequence[str]) -> tuple[Value, Network | None]:
    """Return the loss of a network, and the network with its weights if it is imported."""
    settings = _parsed(model, entries)
    with at_most(MOST_NODES):
        if model.endswith(SUFFIX):
            asked = {name: settings.pop(name, None) for name in ASKED}
            network = read(model, settings, asked["trainable"], weights=True)
        else:
            made, asked = _made_by(model, settings)
            if not is_called_module(made):
                return _checked_loss(model, made), None
            network = torch_model.read(made, asked.get("trainable"), weights=True)
        return loss_of(model, network, asked.get("loss")), network


def sized(model: str, entries: Sequence[str], names: Collection[str]) -> Callable[..., Value]:
    """Return a function from the arguments `names` of a model to its loss.

    It replaces their settings. Raises `OptionError` if the model has no such argument.
    """
    settings = _parsed(model, entries)
    function = find_model(model, {**settings, **dict.fromkeys(names)})
    parameters = inspect.signature(function).parameters
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    for name in names:
        if name not in parameters and not takes_all:
            near = did_you_mean(name, parameters, before="; ")
            raise OptionError(
                f"{model} has no argument {name!r} for its size; it takes "
                f"{', '.join(parameters)}{near}"
            )
    rest = [entry for entry in entries if entry.partition("=")[0] not in names]
    return lambda **size: build(model, [*rest, *(f"{key}={each}" for key, each in size.items())])


def called_module(model: str, entries: Sequence[str]) -> tuple[Any, Any, Any]:
    """Return the module of torch that a function of a file returns, its args and its kwargs."""
    made, _ = _made_by(model, _parsed(model, entries)) if ":" in model else (model, None)
    if not is_called_module(made):
        raise OptionError(
            f"{model} must be file.py:function, which returns a module of torch and its arguments; "
            f"got {quoted(made)}"
        )
    return (*made, None)[:3]


def _checked_loss(model: str, made: object) -> Value:
    if isinstance(made, Value):
        return made
    raise OptionError(
        f"{model} must return a graphc value, the loss, or a module of torch and its arguments; "
        f"it returned {made!r}"
    )


def _made_by(model: str, settings: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """Return the result of the model's function, and the settings that apply to its import.

    These are the settings of `ASKED` that the function has no parameter for.
    """
    function = find_model(model, settings)
    known = inspect.signature(function).parameters if ":" in model else settings
    asked = {name: settings[name] for name in ASKED if name in settings and name not in known}
    arguments = {name: value for name, value in settings.items() if name not in asked}
    check_settings(model, function, arguments)
    made = _call(model, function, arguments)
    if asked and not is_called_module(made):
        check_settings(model, function, settings)
    return made, asked


def arguments_of(model: str, entries: Sequence[str]) -> dict[str, Any]:
    """Return all arguments of the model's function by name, with defaults."""
    settings = _parsed(model, entries)
    parameters = inspect.signature(find_model(model, settings)).parameters.values()
    defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
    return {**defaults, **settings}


def _parsed(model: str, entries: Sequence[str]) -> dict[str, Any]:
    """Return settings by name.

    For an ONNX file, they are extents and inputs, which may have any name.
    """
    return parse_settings(entries, any_key=model.endswith(SUFFIX))


def setting(model: str, entries: Sequence[str], name: str) -> Any:
    """Return an argument of the model's function: the given value, its default, or None."""
    return arguments_of(model, entries).get(name)


def find_model(model: str, given: Container[str]) -> Callable[..., Any]:
    """Return the model's function; raises `OptionError` if `given` lacks a required argument."""
    if model in MODELS:
        return MODELS[model]
    if model.endswith(SUFFIX):
        return onnx_model(model)
    function = function_of(model)
    required = [
        p.name
        for p in inspect.signature(function).parameters.values()
        if p.default is p.empty and p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)
    ]
    missing = [name for name in required if name not in given]
    if missing:
        raise OptionError(f"{model} needs {', '.join(f'{name}=...' for name in missing)}")
    return function


def function_of(model: str) -> Callable[..., Any]:
    """Return the function of a model given as ``file.py:function``.

    Raises `OptionError` if there is no such file or function.
    """
    path, separator, name = model.rpartition(":")
    if not separator:
        if _is_file(model):
            raise OptionError(
                f"{model!r} names no function; give file.py:function, {_functions(model)}"
            )
        near = did_you_mean(model, MODELS, before="; ")
        raise OptionError(
            f"unknown model {quoted(model)}; choose one of: {', '.join(MODELS)}, or give "
            f"file.py:function, or file.onnx{near}"
        )
    if not _is_file(path):
        raise OptionError(f"there is no file {quoted(path)}")
    spec = importlib.util.spec_from_file_location(Path(path).stem, path)
    if spec is None or spec.loader is None:
        raise OptionError(f"{path!r} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module
    sys.path.insert(0, str(Path(path).resolve().parent))
    _call(path, spec.loader.exec_module, {"module": module})
    function = getattr(module, name, None)
    if not callable(function):
        raise OptionError(f"{path!r} has no function {name!r}; it has {_functions(path)}")
    found: Callable[..., Any] = function
    return found


def _is_file(path: str) -> bool:
    try:
        return Path(path).is_file()
    except (OSError, ValueError):  # not a path: too long, or with a null character
        return False


def _functions(path: str) -> str:
    """List the top-level functions of a Python file, for a message."""
    try:
        body = ast.parse(Path(path).read_bytes()).body
    except (OSError, ValueError, SyntaxError, RecursionError, MemoryError):
        return "none that can be read"
    names = [entry.name for entry in body if isinstance(entry, ast.FunctionDef)]
    public = [name for name in names if not name.startswith("_")]
    return f"one of: {', '.join(public)}" if public else "of which it has none"


def _call(what: str, function: Callable[..., Any], arguments: dict[str, Any]) -> Any:
    """Call a user's function; report an exception with its location instead of a traceback."""
    try:
        return function(**arguments)
    except GraphcError:
        raise
    except Exception as error:
        place, told = place_of(error), str(error)
        if isinstance(error, SyntaxError) and error.lineno is not None:
            place, told = f"{error.filename}:{error.lineno}", error.msg
        where = f"{place}: " if place else ""
        raise OptionError(f"{where}{what} failed: {type(error).__name__}: {told}") from error
