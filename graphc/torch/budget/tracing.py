"""Tracing of steps by Dynamo: its settings, refused stances, and reasons for recompilation."""

from __future__ import annotations

import itertools
import re
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any

import torch
from torch._dynamo.utils import get_compilation_metrics

from graphc.errors import TorchError
from graphc.torch.budget.names import expression_of_user

TRACING = {"recompile_limit": 256, "allow_rnn": True, "optimize_ddp": False}
"""Settings of Dynamo: the number of shapes kept, tracing of nn.LSTM, one graph under DDP."""

CALLED_BESIDE = (
    "a planned step cannot be traced by another torch.compile; call it outside of compiled code"
)
"""The reason that torch.compile prints if it traces code that calls a step."""


def traced_as_here() -> AbstractContextManager[object]:
    """Return a context with the settings of torch.compile under which steps are traced."""
    patched: AbstractContextManager[object] = torch._dynamo.config.patch(TRACING)
    return patched


def refuse_stance() -> None:
    """Raise `TorchError` if a stance of torch.compile would bypass the plan."""
    stance = torch._dynamo.eval_frame._stance
    if stance.stance not in ("default", "fail_on_recompile") or stance.backend is not None:
        told = "" if stance.backend is None else f", force_backend={stance.backend!r}"
        raise TorchError(
            f"torch.compiler.set_stance({stance.stance!r}{told}) is set, so the step would not "
            "follow its plan; reset that stance, or call the module itself"
        )


def is_refused_recompile(error: BaseException) -> bool:
    """Return whether the error is torch's refusal to recompile, requested by its stance."""
    is_asked = torch._dynamo.eval_frame._stance.stance == "fail_on_recompile"
    return is_asked and isinstance(error, RuntimeError) and "fail_on_recompile" in str(error)


def refuse_untraced() -> None:
    """Raise `TorchError` if a function runs that torch.compile should have traced."""
    if not torch.compiler.is_compiling():
        raise TorchError(
            "torch.compile is disabled by torch._dynamo.config.disable, TORCHDYNAMO_DISABLE or "
            "TORCH_COMPILE_DISABLE, so the step would not follow its plan; enable it, or call "
            "the module itself"
        )


def last_guard() -> str:
    """Return the guard that failed at the last recompilation, such as ``calls == 3``."""
    reasons = (each.recompile_reason for each in reversed(get_compilation_metrics()))
    reason = next((each for each in reasons if each), "")
    guard = re.split(r"\s*(?:#|\(HINT|\n|$)", re.sub(r"^\d+/\d+: ", "", reason), maxsplit=1)[0]
    return expression_of_user(guard)


def apart(function: Any) -> FunctionType:
    """Return a copy of the function with its own code object.

    torch.compile caches by code object, so its cache is freed together with the step.
    """
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_NUMBERS)}")
    return FunctionType(code, function.__globals__, code.co_name)


_NUMBERS = itertools.count()
