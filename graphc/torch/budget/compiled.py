"""A compiled function whose sizes become symbols when they change, or stay fixed if that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from graphc.errors import GraphcError
from graphc.torch.budget.refusals import innermost_of, is_of_compiling
from graphc.torch.budget.sized import UnsizedError
from graphc.torch.budget.tracing import is_refused_recompile
from graphc.torch.private import dynamo_errors


class Compiled:
    """A function compiled by ``compile(dynamic)``, with ``dynamic`` None, and False if it fails.

    The first trace has fixed sizes in both cases, so its errors are final.
    """

    def __init__(self, compile: Callable[[bool | None], Callable[..., Any]]) -> None:
        self._compile, self._run = compile, compile(None)
        self._is_traced = self._is_fixed = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the result of a call."""
        try:
            found = self._run(*args, **kwargs)
        except Exception as error:
            is_of_sizes = self._is_traced and not self._is_fixed and _may_be_of_sizes(error)
            self._is_traced |= not is_of_compiling(error)
            if not is_of_sizes:
                raise
        else:
            self._is_traced = True
            return found
        fixed, is_traced = self._compile(False), True
        try:
            return fixed(*args, **kwargs)
        except Exception as error:
            is_traced = not is_of_compiling(error)
            raise
        finally:
            if is_traced:
                self._run, self._is_fixed = fixed, True


def _may_be_of_sizes(error: Exception) -> bool:
    """Return whether an error may be due to sizes that are symbols in a trace."""
    if isinstance(error, UnsizedError):
        return True
    is_final = isinstance(innermost_of(error), GraphcError) or is_refused_recompile(error)
    is_final |= isinstance(error, dynamo_errors.FailOnRecompileLimitHit)
    return is_of_compiling(error) and not is_final
