"""Names of nodes and tensors, as paths in ``named_modules`` without the prefix of the step, and the
lines of the user's program that Dynamo traces."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterable, Iterator
from pathlib import Path
from traceback import FrameSummary
from types import FunctionType
from typing import Any, Literal

import torch
from torch import fx, nn
from torch.utils._pytree import keystr, tree_flatten_with_path

Kind = Literal["parameter", "buffer", "input", "constant"]


def module_path(node: fx.Node) -> str:
    """Return the path of a node's module, such as ``blocks.3.norm``.

    A node of the backward pass belongs to the module of its forward node.
    """
    found = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    paths = [path for path, _ in found.values()]
    return clean(paths[-1]) if paths else ""


NOISE = (
    "L['self']._modules['module'].",  # torch 2.9
    "L['self'].module.",
    "L['self'].module",
    "L['self'].",
    "L['self']",
    "L['fn'].",  # of torch.compile(module)
    "L['fn']",
)
"""Prefixes of Dynamo's names for modules in a step."""

VARIABLE = re.compile(r"^L\['(\w+)'\]")
"""A variable of a compiled function, in Dynamo's names."""


OF_DICTIONARY = re.compile(r"\.__dict__\['_modules'\]\['([^']*)'\]")
"""A submodule of a class with its own ``__getattr__``, in Dynamo's names."""


def clean(path: str) -> str:
    """Convert Dynamo's name of a module into its path in ``named_modules``."""
    path = OF_DICTIONARY.sub(r".\1", path)
    for noise in NOISE:
        path = path.removeprefix(noise)
    path = VARIABLE.sub(r"\1", path)
    path = path.replace("_modules['", "").replace("']", "").replace("[", ".").replace("]", "")
    return path.strip(".")


def arguments_of(given: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    """Yield the leaves of the arguments by name: ``args[0]``, ``kwargs['batch']['x']``.

    `expression_of_user` converts Dynamo's names into the same form.
    """
    for (whole, *path), each in tree_flatten_with_path(given)[0]:
        yield f"{('args', 'kwargs')[whole.idx]}{keystr(tuple(path))}", each


def named(step: nn.Module, given: tuple[Any, ...]) -> Iterator[tuple[Kind, str, Any]]:
    """Yield a step's parameters and buffers and a call's arguments, with kinds and names."""
    for name, each in step.named_parameters():
        yield "parameter", name, each
    for name, each in step.named_buffers():
        yield "buffer", name, each
    for name, each in arguments_of(given):
        yield "input", name, each


def expression_of_user(text: str) -> str:
    """Convert Dynamo's expression for variables of a step into the module's: ``rotary.cos``."""
    text = OF_DICTIONARY.sub(r".\1", text)
    text = re.sub(r"\._(?:modules|parameters|buffers)\['([^']*)'\]", r".\1", text)
    text = re.sub(r"\b([LG])\['(?:__import_)?([^']*)'\]", _variable, text)
    return re.sub(r"\bself\.(module\.)?", "", text)


def _variable(found: re.Match[str]) -> str:
    """Return the name of a local or global variable; Dynamo replaces dots in module names."""
    return found[2].replace("_dot_", ".") if found[1] == "G" else found[2]


GRAPHC, TORCH = Path(__file__).parents[3], Path(torch.__path__[0])
"""Directories of code that is not the user's."""

GENERATED = "<graphc>"
"""File name of functions that graphc generates, which no error names."""

LIBRARIES = tuple(Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib", "stdlib"))
"""Directories of installed packages and of Python."""


def origin_of(error: BaseException, submodule: str) -> str:
    """Return the line that Dynamo traced, as the end of a clause; empty if it is unknown.

    Frames of torch count only if there are no others.
    """
    return _location(getattr(error, "real_stack", None) or (), submodule)


def origin_of_node(node: fx.Node) -> str:
    """Return the line that Dynamo traced into a node, as `origin_of`; its module if it has none.

    Some nodes of the backward pass have no module; then that of a node of the same line counts.
    """
    trace = node.meta.get("stack_trace") or ""
    alike = (each for each in node.graph.nodes if trace and each.meta.get("stack_trace") == trace)
    path = module_path(node) or next(filter(None, map(module_path, alike)), "")
    frames = re.findall(r'File "(.*)", line (\d+), in (.*)', trace)
    stack = [FrameSummary(file, int(line), name) for file, line, name in frames]
    return _location(stack, path) or (f", in submodule {path}" if path else "")


def _location(frames: Iterable[FrameSummary], submodule: str) -> str:
    """Return the innermost frame outside of graphc and, if there is one, of torch."""
    stack = [
        each
        for each in frames
        if each.filename != GENERATED and not Path(each.filename).is_relative_to(GRAPHC)
    ]
    others = [each for each in stack if not Path(each.filename).is_relative_to(TORCH)]
    if not stack:
        return ""
    line = (others or stack)[-1]
    path = Path(line.filename)
    inside = f" of submodule {submodule}" if submodule else ""
    return f", at {path.name}:{line.lineno} in {line.name}{inside}, a line of {_owner(path)}"


def _owner(file: Path) -> str:
    """Return the library that a file belongs to, or ``your program``."""
    for folder in (TORCH.parent, *LIBRARIES):
        if file.is_relative_to(folder):
            return f"the library {file.relative_to(folder).parts[0].removesuffix('.py')}"
    return "your program"


def submodule_of(translator: Any) -> str:
    """Return the path of the module whose code Dynamo's translator traces; empty at the root."""
    stack = list(translator.nn_module_stack.values())
    return clean(stack[-1][0]) if stack else ""


def function_of(translator: Any) -> FunctionType | None:
    """Return the function that Dynamo's translator traces; None for code of torch or graphc."""
    function: Any = getattr(getattr(translator, "funcvar", None), "fn", None)
    file = Path(translator.f_code.co_filename)
    is_ours = file.is_relative_to(GRAPHC) or file.is_relative_to(TORCH)
    is_plain = isinstance(function, FunctionType) and not is_ours
    return function if is_plain and function.__code__ is translator.f_code else None


def has_parameters(translator: Any) -> bool:
    """Return whether the traced function has a module with parameters as an argument."""
    code = translator.f_code
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    variables = (translator.symbolic_locals.get(name) for name in names)
    values = (vars(each.realize()).get("value") for each in variables if each is not None)
    modules = (each for each in values if isinstance(each, nn.Module))
    return any(next(module.parameters(), None) is not None for module in modules)
