"""How a step is traced: what Dynamo is told, what it must not be told, and why it traces again."""

from __future__ import annotations

import itertools
import re
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any

import torch
from torch._dynamo.utils import get_compilation_metrics

from graphc.errors import TorchError
from graphc.torch.names import expression_of_user

TRACING = {"recompile_limit": 256, "allow_rnn": True, "optimize_ddp": False}
"""What Dynamo is told: how many shapes it keeps, that it traces nn.LSTM, one graph under DDP."""

CALLED_BESIDE = "a planned step is compiled by itself; call it outside of what torch.compile traces"
"""The reason that torch.compile gives where it meets a step."""


def traced_as_here() -> AbstractContextManager[object]:
    """Settings of torch.compile under which steps are traced."""
    patched: AbstractContextManager[object] = torch._dynamo.config.patch(TRACING)
    return patched


def refuse_stance() -> None:
    """Raise `TorchError` where torch is told to run what it compiles in another way."""
    stance = torch._dynamo.eval_frame._stance
    if stance.stance not in ("default", "fail_on_recompile") or stance.backend is not None:
        told = "" if stance.backend is None else f", force_backend={stance.backend!r}"
        raise TorchError(
            f"torch.compiler.set_stance({stance.stance!r}{told}) is in force, under which the step "
            "would not keep to its plan; leave that stance, or call the module itself"
        )


def is_refused_recompile(error: BaseException) -> bool:
    """Whether torch refuses to trace, since that is what its stance asks for."""
    is_asked = torch._dynamo.eval_frame._stance.stance == "fail_on_recompile"
    return is_asked and isinstance(error, RuntimeError) and "fail_on_recompile" in str(error)


def refuse_untraced() -> None:
    """Raise `TorchError` where the function runs that should have been traced."""
    if not torch.compiler.is_compiling():
        raise TorchError(
            "torch.compile is switched off, by torch._dynamo.config.disable, TORCHDYNAMO_DISABLE "
            "or TORCH_COMPILE_DISABLE, and the step would not keep to its plan; switch it on, or "
            "call the module itself"
        )


def last_guard() -> str:
    """What no longer held when Dynamo traced again for the last time: ``calls == 3``."""
    reasons = (each.recompile_reason for each in reversed(get_compilation_metrics()))
    reason = next((each for each in reasons if each), "")
    guard = re.split(r"\s*(?:#|\(HINT|\n|$)", re.sub(r"^\d+/\d+: ", "", reason), maxsplit=1)[0]
    return expression_of_user(guard)


def apart(function: Any) -> FunctionType:
    """The function with a code of its own: what torch.compile keeps of it goes with the step."""
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_NUMBERS)}")
    return FunctionType(code, function.__globals__, code.co_name)


_NUMBERS = itertools.count()
