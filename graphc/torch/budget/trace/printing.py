"""Calls in a module that only print: loggers, ``warnings.warn`` and ``print``.

Dynamo cannot trace them. A plan leaves them out, and prints a message while it traces the call,
unless the message contains values of tensors.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

import torch

from graphc.torch.private import (
    IGNORED_FUNCTIONS,
    ConstantVariable,
    IgnoredFunctionVariable,
    LoggingLoggerVariable,
    Replacement,
    dynamo_config,
    dynamo_utils,
)
from graphc.torch.versions import is_before

LEVELS = ("debug", "info", "warning", "error", "critical", "exception", "log")
"""Functions of ``logging`` that log to the root logger."""

PRINTING = {
    print,
    warnings.warn,
    *(getattr(logging, name) for name in LEVELS),
}
"""Functions that only print; Dynamo ignores them."""

LEAVES_FUNCTIONS_OUT = (2, 13)
"""The first tested release of torch whose logged config has no ignored functions."""


def printing(is_on: Callable[[], bool]) -> Iterator[Replacement]:
    """Yield replacements with which Dynamo makes these calls while it traces, if `is_on`."""
    called = LoggingLoggerVariable.call_method

    @wraps(called)
    def call_method(self: Any, translator: Any, name: str, args: Any, kwargs: Any) -> Any:
        if not is_on():
            return called(self, translator, name, args, kwargs)
        return ConstantVariable.create(_call(getattr(self.value, name), args, kwargs))

    yield LoggingLoggerVariable, "call_method", call_method
    if IgnoredFunctionVariable is not None:
        yield _printing_ignored(is_on)
        if is_before(torch.__version__, LEAVES_FUNCTIONS_OUT):
            yield _without_metrics()


def _printing_ignored(is_on: Callable[[], bool]) -> Replacement:
    ignored = IgnoredFunctionVariable.call_function

    @wraps(ignored)
    def call_function(self: Any, translator: Any, args: Any, kwargs: Any) -> Any:
        if is_on() and self.value in PRINTING:
            _call(self.value, args, kwargs)
        return ignored(self, translator, args, kwargs)

    return IgnoredFunctionVariable, "call_function", call_function


def _without_metrics() -> Replacement:
    """Let Dynamo's metrics have no config while it ignores functions.

    torch 2.11 sorts the functions and writes them as JSON. Both raise, so that it prints an error
    for each graph, and drops the metrics.
    """
    called = dynamo_utils._get_dynamo_config_for_logging

    @wraps(called)
    def config_for_logging() -> str | None:
        return None if getattr(dynamo_config, IGNORED_FUNCTIONS) else called()

    return dynamo_utils, "_get_dynamo_config_for_logging", config_for_logging


def _call(called: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Call a function with the values of Dynamo's variables, or return None if one is unknown."""
    try:
        values = [each.as_python_constant() for each in args]
        named = {name: each.as_python_constant() for name, each in kwargs.items()}
    except NotImplementedError:
        return None
    return called(*values, **named)
