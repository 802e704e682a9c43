"""Tracing of steps by Dynamo: its settings, refused stances, and reasons for recompilation.

Dynamo returns a tensor once from its graph, however often the module returns it, and returns an
input without the graph. So `note_returned` notes the tensors while Dynamo traces the module.
"""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from contextlib import AbstractContextManager
from types import FunctionType
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from graphc.errors import TorchError
from graphc.torch.budget.check.returned import Returned
from graphc.torch.budget.trace.measure import bytes_alone
from graphc.torch.budget.trace.names import expression_of_user
from graphc.torch.budget.trace.printing import PRINTING
from graphc.torch.budget.trace.replans import guard_of
from graphc.torch.private import (
    IGNORED_FUNCTIONS,
    ComptimeVar,
    comptime,
    current_dispatch_mode,
    dynamo_config,
    eval_frame,
    get_compilation_metrics,
)

TRACING = {
    "recompile_limit": 256,  # the number of traces kept
    "allow_rnn": True,
    "skip_nnmodule_hook_guards": False,  # a hook that is registered later is traced
    "optimize_ddp": False,  # one graph under DDP
    "specialize_int": True,
    "specialize_float": True,
    "capture_dynamic_output_shape_ops": True,  # so that sizes that depend on data are refused
}
"""Settings of Dynamo while steps are traced."""

CALLED_BESIDE = (
    "a planned step cannot be traced by another torch.compile; call it outside of compiled code"
)
"""The reason that torch.compile prints if it traces code that calls a step."""


def traced_as_here() -> AbstractContextManager[object]:
    """Return a context manager that applies the settings of torch.compile for tracing steps."""
    ignored = {IGNORED_FUNCTIONS: PRINTING | getattr(dynamo_config, IGNORED_FUNCTIONS)}
    patched: AbstractContextManager[object] = dynamo_config.patch({**TRACING, **ignored})
    return patched


def refuse_stance() -> None:
    """Raise `TorchError` if a stance of torch.compile would bypass the plan."""
    stance = eval_frame._stance
    if stance.stance not in ("default", "fail_on_recompile") or stance.backend is not None:
        backend = "" if stance.backend is None else f", force_backend={stance.backend!r}"
        raise TorchError(
            f"torch.compiler.set_stance({stance.stance!r}{backend}) is set, so the step would not "
            "follow its plan; reset that stance, or call the module itself"
        )


def is_refused_recompile(error: BaseException) -> bool:
    """Return whether the error is torch's refusal to recompile, requested by its stance."""
    is_set = eval_frame._stance.stance == "fail_on_recompile"
    return is_set and isinstance(error, RuntimeError) and "fail_on_recompile" in str(error)


def refuse_new_plan(known: int) -> None:
    """Raise an error if sizes that need no new trace may not be planned.

    A stance forbids new plans, or there are as many plans of one trace as the limit.
    """
    if eval_frame._stance.stance == "fail_on_recompile":
        raise RuntimeError("a plan for new sizes under the stance fail_on_recompile")
    if known >= TRACING["recompile_limit"]:
        raise TorchError(
            f"the step has been planned for {known} sizes, which is the limit; use fewer shapes, "
            "such as lengths padded to multiples of 64"
        )


def refuse_untraced() -> None:
    """Raise `TorchError` if a function runs that torch.compile should have traced."""
    if not torch.compiler.is_compiling():
        mode = current_dispatch_mode()
        if mode is not None:
            raise TorchError(
                f"the step is called under a {type(mode).__name__.lstrip('_')}; under a "
                "TorchDispatchMode, torch.compile does not trace, and the step would not keep to "
                "its plan; call the step outside of it, or the module itself"
            )
        raise TorchError(
            "torch.compile is disabled by torch._dynamo.config.disable, TORCHDYNAMO_DISABLE or "
            "TORCH_COMPILE_DISABLE, so the step would not follow its plan; enable it, or call "
            "the module itself"
        )


def last_guard() -> str:
    """Return the guard that failed at the last recompilation, such as ``calls == 3``."""
    reasons = (each.recompile_reason for each in reversed(get_compilation_metrics()))
    reason = next((each for each in reasons if each), "")
    return expression_of_user(guard_of(reason))


def apart(function: Any) -> FunctionType:
    """Return a copy of the function with its own code object.

    torch.compile caches by code object, so its cache is freed together with the step.
    """
    code = function.__code__.replace(co_name=f"{function.__name__}_{next(_NUMBERS)}")
    return FunctionType(code, function.__globals__, code.co_name)


_NUMBERS = itertools.count()


class _Noted(threading.local):
    bytes_of: list[tuple[str, int]] | None = None
    """Per returned tensor, the name of Dynamo's node and its bytes."""


_NOTED = _Noted()


def note_returned(found: Any) -> None:
    """Note the tensors that a module returns; Dynamo traces this function."""
    leaves = [  # noqa: F841 - `_note` reads it
        each for each in tree_leaves(found) if isinstance(each, torch.Tensor)
    ]
    comptime(_note)


def _note(context: Any) -> None:
    found = context.get_local("leaves")._i_will_not_complain_if_bc_breaks_VariableTracker()
    noted = []
    for leaf in map(ComptimeVar, found.items):
        is_of_graph = leaf.is_proxy() and isinstance(leaf.as_proxy(), fx.Proxy)
        fake = leaf.as_fake() if is_of_graph else None
        if isinstance(fake, torch.Tensor) and fake.requires_grad:
            noted.append((str(leaf.as_proxy().node.name), bytes_alone(fake)))
    _NOTED.bytes_of = noted


def returned_of(traced: fx.GraphModule) -> Returned | None:
    """Return the tensors that were noted while Dynamo traced this graph, or None."""
    noted, _NOTED.bytes_of = _NOTED.bytes_of, None
    if noted is None:
        return None
    count = Counter(name for name, _ in noted)
    (output,) = traced.graph.find_nodes(op="output")
    given = traced.graph.find_nodes(op="placeholder")
    outputs = tree_leaves(output.args[0])
    known = {node.name for node in (*outputs, *given) if isinstance(node, fx.Node)}
    others = [(name, size) for name, size in noted if name not in known]
    other_bytes = sum(size for _, size in others) + sum(dict(others).values())
    return Returned(_by_index(outputs, count), _by_index(given, count), other_bytes)


def _by_index(nodes: Any, count: Counter[str]) -> dict[int, int]:
    names = [getattr(node, "name", "") for node in nodes]
    return {index: count[name] for index, name in enumerate(names) if name in count}
