"""What cannot be planned, told by its name, the rule and the cure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch._higher_order_ops.auto_functionalize import auto_functionalized, auto_functionalized_v2
from torch._higher_order_ops.effects import with_effects
from torch.utils._python_dispatch import is_traceable_wrapper_subclass
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_leaves

from graphc.errors import GraphcError, TorchError
from graphc.torch.names import module_path

COLLECTIVES = ("_c10d_functional", "c10d", "_c10d_functional_autograd", "symm_mem")
"""Namespaces of ops that wait for other processes."""

FUNCTIONALIZED = (auto_functionalized, auto_functionalized_v2)
"""Run an op that writes into its operands on copies of these."""

CHECKS = (torch.ops.aten._linalg_check_errors.default,)
"""Ops whose only effect is an error, where what they are given says that there was one."""

SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def refuse_node(node: fx.Node) -> None:
    """Raise `TorchError` for a node of a joint graph that cannot be planned."""
    place = f" in {module_path(node)}" if module_path(node) else ""
    if getattr(node.target, "namespace", "") in COLLECTIVES:
        raise TorchError(
            f"{node.target}{place} waits for other processes, which a plan of one cannot hold; "
            "keep collectives outside the module, as DistributedDataParallel around it does"
        )
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        _refuse_higher_order(node, place)
    for leaf in tree_leaves(node.meta.get("val")):
        if any(isinstance(size, SYMBOLS) for size in _sizes(leaf)):
            raise TorchError(
                f"{node.name}{place} has a size that is not known before the step ({leaf}); a plan "
                "is made for one shape, so give a shape that does not depend on data, and mark no "
                "dimension as dynamic"
            )
        if isinstance(leaf, torch.Tensor) and leaf.layout != torch.strided:
            raise TorchError(
                f"{node.name}{place} is {leaf.layout}; only strided tensors can be planned, so "
                "keep it outside the module"
            )


def called_op(node: fx.Node) -> Any:
    """The op that a node runs: the one inside, where its target is a wrapper of ops."""
    if node.target in FUNCTIONALIZED:
        return node.args[0]
    return node.args[1] if node.target is with_effects else node.target


def _refuse_higher_order(node: fx.Node, place: str) -> None:
    called = called_op(node)
    if node.target in FUNCTIONALIZED or called in CHECKS:
        return
    if node.target is with_effects:
        raise TorchError(
            f"{called}{place} is registered as having effects, and a plan measures an op and "
            "may repeat it; call it outside the module, or take the effect away"
        )
    raise TorchError(
        f"{node.target}{place} runs a graph of its own, into which a plan does not see; write that "
        "part without it, or keep it outside the module"
    )


def _sizes(leaf: Any) -> tuple[Any, ...]:
    if isinstance(leaf, torch.Tensor):
        return (*leaf.shape, *leaf.stride()) if leaf.layout == torch.strided else ()
    return (leaf,)


def refuse_subclasses(module: nn.Module, given: tuple[Any, Any]) -> None:
    """Raise `TorchError` for a parameter, buffer or argument that is made of other tensors.

    `given` are positional and keyword arguments; `module` has the user's as its own.
    """
    for name, tensor in _named(module, given):
        if is_traceable_wrapper_subclass(tensor):
            raise TorchError(
                f"{name} is a {type(tensor).__name__}, whose bytes lie in tensors of its own; a "
                "plan counts plain tensors alone, so give plain ones"
            )


def _named(module: nn.Module, given: Any) -> Iterator[tuple[str, Any]]:
    for name, each in module.named_parameters():
        yield f"parameter {name.removeprefix('module.')}", each
    for name, each in module.named_buffers():
        yield f"buffer {name.removeprefix('module.')}", each
    for path, each in tree_flatten_with_path(given)[0]:
        yield f"argument {keystr(path[1:])}", each


def as_graphc_error(error: Exception) -> Exception:
    """Errors of a call: graphc's own as they were, those of torch.compile as `TorchError`."""
    seen: BaseException | None = error
    while seen is not None:
        if isinstance(seen, GraphcError):
            return seen
        innermost, seen = seen, getattr(seen, "inner_exception", None) or seen.__cause__
    if not _is_of_compiling(error):
        return error
    lines = str(innermost).strip().splitlines() or [type(innermost).__name__]
    return TorchError(
        f"torch.compile cannot trace the module as one graph{_user_line(error)}: {lines[0]}; "
        "see what torch says above, and keep what it cannot trace outside the module"
    )


def _is_of_compiling(error: BaseException) -> bool:
    """Whether Dynamo was at work: what a graph raises that runs is no fault of compiling."""
    if isinstance(error, torch._dynamo.exc.TorchDynamoException):
        return True
    files = []
    trace = error.__traceback__
    while trace is not None:
        files.append(trace.tb_frame.f_code.co_filename)
        trace = trace.tb_next
    return any(Path(file).match("torch/_dynamo/convert_frame.py") for file in files)


def _user_line(error: BaseException) -> str:
    """Where in the user's program Dynamo was, as far as it says."""
    stack = getattr(error, "real_stack", None)
    if not stack:
        return ""
    return f", at {Path(stack[-1].filename).name}:{stack[-1].lineno} in {stack[-1].name}"
