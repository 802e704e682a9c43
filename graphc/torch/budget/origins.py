"""Origins of errors in a trace: the line, whose code it is, and the submodule."""

from __future__ import annotations

import sysconfig
from pathlib import Path
from types import FunctionType
from typing import Any

import torch
from torch import nn

from graphc.torch.budget.names import clean

GRAPHC, TORCH = Path(__file__).parents[2], Path(torch.__path__[0])
"""Directories of code that is not the user's."""

LIBRARIES = tuple(Path(sysconfig.get_path(kind)) for kind in ("purelib", "platlib", "stdlib"))
"""Directories of installed packages and of Python."""


def origin_of(error: BaseException, submodule: str) -> str:
    """Return the line that Dynamo traced, as the end of a clause; empty if it is unknown.

    Frames of torch count only if there are no others.
    """
    stack = [
        each
        for each in getattr(error, "real_stack", None) or ()
        if not Path(each.filename).is_relative_to(GRAPHC)
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
