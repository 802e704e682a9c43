"""Warnings about torch.compile inside or around a planned step, which has no effect on it."""

from __future__ import annotations

import sys
import warnings
from types import FrameType

from torch import nn

from graphc.errors import level_of_caller
from graphc.torch.private import OptimizedModule

ADVICE = (
    "a planned step runs its own graph with torch's eager kernels. Leave out torch.compile, or "
    "compile without a plan"
)


def without_compile(module: nn.Module) -> nn.Module:
    """Return the module inside of torch.compile, and warn about all parts that are compiled."""
    parts = [
        f"module {name!r}" if name else "the module"
        for name, part in module.named_modules()
        if isinstance(part, OptimizedModule) or part._compiled_call_impl is not None
    ]
    if parts:
        more = f" and {len(parts) - 1} more" if len(parts) > 1 else ""
        warnings.warn(
            f"{parts[0]}{more} is compiled by torch.compile, which has no effect here: {ADVICE}",
            stacklevel=level_of_caller(),
        )
    return module._orig_mod if isinstance(module, OptimizedModule) else module


def warn_of_compile() -> None:
    """Warn if the calling step is itself the argument of torch.compile."""
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename in _OF_TORCH:
        if frame.f_code.co_name == "compile_wrapper":
            warnings.warn(
                f"torch.compile around a planned step has no effect: {ADVICE}",
                stacklevel=level_of_caller(),
            )
            return
        frame = frame.f_back


_OF_TORCH = {sys.modules[kind.__module__].__file__ for kind in (nn.Module, OptimizedModule)}
"""The files of the frames between a call of a module and its forward function."""
