"""A backend for torch.compile that partitions joint graphs with a given function, calls of what it
compiles, and warnings about torch.compile around a step or inside of its module."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any, Literal

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from graphc.errors import GraphcError, TorchError, level_of_caller
from graphc.torch.budget.check.returned import Returned
from graphc.torch.budget.trace.refusals import innermost_of, is_of_compiling
from graphc.torch.budget.trace.runner import Boxed
from graphc.torch.budget.trace.sized import Sized, UnsizedError, is_sized
from graphc.torch.budget.trace.sources import source_names
from graphc.torch.budget.trace.tracing import is_refused_recompile, returned_of
from graphc.torch.private import (
    OptimizedModule,
    TracingContext,
    aot_autograd,
    dynamo_errors,
    keeps_graph,
    sequence_number,
)

Graphs = tuple[fx.GraphModule, fx.GraphModule]
"""The forward and the backward graph of a partition."""

Rest = tuple[Any, dict[str, Any]]
"""The joint inputs and the remaining keyword arguments of torch's call of a ``partition_fn``."""

Partitioning = Callable[[fx.GraphModule, int, list[str], Returned | None, Rest], Graphs]
"""Partitions a joint graph into the forward and the backward graph.

The arguments are the joint graph, its number of forward outputs, Dynamo's names of its inputs, the
tensors that the module returns, and the rest of torch's arguments.
"""

Part = Literal["forward", "backward", "inference"]


def backend(
    partition: Partitioning,
    run_of: Callable[[fx.GraphModule, Part], Boxed],
    writes_inputs: bool = False,
) -> Any:
    """Return a backend for torch.compile; `run_of` converts graphs into functions.

    With `writes_inputs`, graphs write into inputs where torch allows it, as under ``aot_eager``.
    """

    def compile_graph(traced: fx.GraphModule, given: Sequence[Any]) -> Any:
        names, returned = source_names(traced), returned_of(traced)
        sized: list[Sized] = []

        def compiler(part: Part) -> Callable[[fx.GraphModule, Sequence[Any]], Boxed]:
            def compiled(module: fx.GraphModule, _: Sequence[Any]) -> Boxed:
                if part == "backward":
                    _donate_nothing()
                if sized and part != "inference":
                    return sized[0].forward if part == "forward" else sized[0].backward
                return run_of(module, part)

            return compiled

        def split(joint: fx.GraphModule, given: Any, *, num_fwd_outputs: int, **more: Any) -> Any:
            def fixed(joint: fx.GraphModule, returned: Returned | None) -> Graphs:
                return partition(joint, num_fwd_outputs, names, returned, (given, more))

            if not is_sized(joint):
                return fixed(joint, returned)
            sized.append(Sized(joint, num_fwd_outputs, returned, fixed, run_of))
            return sized[0].graphs()

        made = aot_autograd(
            fw_compiler=compiler("forward"),
            bw_compiler=compiler("backward"),
            inference_compiler=compiler("inference"),
            partition_fn=split,
            keep_inference_input_mutations=writes_inputs,
        )
        return made(traced, given)

    return compile_graph


def _donate_nothing() -> None:
    """Disable buffer donation, so that the backward graph may run twice.

    With donation, AOTAutograd refuses ``retain_graph`` for graphs with saved tensors. A backward
    pass with ``retain_graph`` runs a variant of the graph that overwrites nothing.
    """
    TracingContext.get().fw_metadata.bw_donated_idxs = []


def is_run_again() -> bool:
    """Return whether the current backward pass has ``retain_graph``."""
    return bool(keeps_graph())


def with_first_derivatives(call: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Return the result of a call; differentiating its backward pass raises `TorchError`."""
    begin = sequence_number()
    found = call(*args, **kwargs)
    for function in _made_since(begin, found):
        if function.name() == "CompiledFunctionBackward":
            function.register_prehook(_refuse_create_graph)
    return found


def _made_since(begin: int, found: Any) -> set[Any]:
    """Return the autograd nodes that a call created, without those of its arguments."""
    pending = [each.grad_fn for each in tree_leaves(found) if isinstance(each, torch.Tensor)]
    seen: set[Any] = set()
    while pending:
        function = pending.pop()
        if function is not None and function not in seen and function._sequence_nr() >= begin:
            seen.add(function)
            pending += [above for above, _ in function.next_functions]
    return seen


def _refuse_create_graph(_: Any) -> None:
    if torch.is_grad_enabled():
        raise TorchError(
            "create_graph=True needs derivatives of the backward pass, but a planned step has "
            "only first derivatives; call the module itself for second derivatives"
        )


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


ADVICE = (
    "a planned step runs its own graph. Leave out torch.compile, and plan with compile=True for "
    "kernels of inductor"
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
