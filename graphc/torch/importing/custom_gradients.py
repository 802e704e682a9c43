"""Ways in which a module changes its gradients: values without one are kept, others are refused.

torch.export records the forward pass, so an imported module is differentiated anew. A region under
`torch.no_grad` is in its graph until the first decomposition; here, each of its results becomes the
operand of a detach. The gradients of `torch.autograd.Function` and of hooks are in no graph.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import torch
from torch.export import ExportedProgram
from torch.utils.checkpoint import CheckpointFunction

from graphc.errors import TorchError

_LOCK = threading.RLock()


@contextlib.contextmanager
def detached_regions(program: ExportedProgram) -> Iterator[None]:
    """Detach the results of regions without gradients while the context is entered.

    Raises `TorchError` for a region that writes into a value which has a gradient.
    """
    parts = [p for p in program.graph_module.modules() if isinstance(p, torch.fx.GraphModule)]
    added: list[tuple[torch.fx.Node, torch.fx.Node]] = []
    for part in parts:
        for node in list(part.graph.nodes):
            if node.op == "call_function" and _disables_gradients(node):
                _refuse_writes(part, node)
                added += filter(None, (_detached(part.graph, user) for user in list(node.users)))
        part.recompile()
    try:
        yield
    finally:  # the program may be the caller's
        for detached, result in added:
            detached.replace_all_uses_with(result)
            detached.graph.erase_node(detached)
        for part in parts:
            part.recompile()


def _refuse_writes(part: torch.fx.GraphModule, region: torch.fx.Node) -> None:
    """Raise `TorchError` if an op of a region writes into a value that has a gradient outside."""
    inner = getattr(part, str(region.args[1].target))
    inputs = [node for node in inner.graph.nodes if node.op == "placeholder"]
    outside = dict(zip(inputs, region.args[2:], strict=False))
    for node in inner.graph.nodes:
        schema = getattr(node.target, "_schema", None)
        written = node.args[0] if schema is not None and schema.is_mutable and node.args else None
        source = outside.get(written)
        if isinstance(source, torch.fx.Node) and source.op != "placeholder":
            raise TorchError(
                f"{node.target} writes under torch.no_grad into {source.name}, which has a "
                "gradient; write into a copy of it, or outside of torch.no_grad"
            )


def _disables_gradients(node: torch.fx.Node) -> bool:
    wraps = node.target is torch.ops.higher_order.wrap_with_set_grad_enabled
    return wraps and node.args[0] is False


def _detached(
    graph: torch.fx.Graph, result: torch.fx.Node
) -> tuple[torch.fx.Node, torch.fx.Node] | None:
    """Let the users of a result read a detach of it, and return both; None if it is no float."""
    value = result.meta.get("val")
    if not isinstance(value, torch.Tensor) or not value.dtype.is_floating_point:
        return None
    with graph.inserting_after(result):
        detached = graph.call_function(torch.ops.aten.detach.default, (result,))
    detached.meta = dict(result.meta)
    is_reader = lambda user: user is not detached and user.op != "output"  # noqa: E731
    result.replace_all_uses_with(detached, is_reader)
    return detached, result


@contextlib.contextmanager
def refused_in(module: torch.nn.Module) -> Iterator[None]:
    """Raise `TorchError` for hooks of gradients, and for gradients that the forward pass defines.

    It names the module in whose forward pass a `torch.autograd.Function` or a hook is applied.
    """
    _refuse_hooks(module)
    with _LOCK:
        changed: list[str] = []
        own = threading.get_ident()
        places = (torch.autograd.Function, "apply"), (torch.Tensor, "register_hook")
        before = [vars(kind).get(name) for kind, name in places]
        apply = inspect.getattr_static(torch.autograd.Function, "apply")
        hook = torch.Tensor.register_hook

        def applied(cls: Any, *args: Any, **kwargs: Any) -> Any:
            if threading.get_ident() != own:
                return apply.__get__(None, cls)(*args, **kwargs)
            if cls is CheckpointFunction:  # its gradient is that of the function without it
                function, _, *operands = args
                return function(*operands)
            if cls.__module__ != CheckpointFunction.__module__:
                where = _where(module)
                changed.append(f"applies {cls.__name__}, a torch.autograd.Function, in {where}")
            return apply.__get__(None, cls)(*args, **kwargs)

        def hooked(tensor: torch.Tensor, function: Callable[..., Any]) -> Any:
            if threading.get_ident() == own:
                changed.append(f"registers a hook of a gradient in {_where(module)}")
            return hook(tensor, function)

        try:
            torch.autograd.Function.apply = classmethod(applied)
            torch.Tensor.register_hook = hooked
            yield
        finally:
            for (kind, name), given in zip(places, before, strict=True):
                if given is None:
                    delattr(kind, name)
                else:
                    setattr(kind, name, given)
    if changed:
        raise TorchError(
            f"the module {changed[0]}, whose backward pass an import cannot see; write the forward "
            "pass in ops that have this gradient, or load with trainable=False to only evaluate it"
        )


def _refuse_hooks(module: torch.nn.Module) -> None:
    for name, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            raise TorchError(
                f"module {name or 'itself'!r} has a backward hook, which an import cannot see; "
                "remove it, or load with trainable=False to only evaluate the module"
            )
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise TorchError(
                f"parameter {name!r} has a hook on its gradient, which an import cannot see; "
                "remove it, or load with trainable=False to only evaluate the module"
            )


def _where(module: torch.nn.Module) -> str:
    """Return the name of the innermost module whose forward pass is running."""
    names = {id(part): name for name, part in module.named_modules()}
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        part = frame.f_locals.get("self")
        if id(part) in names and frame.f_code.co_name != "_call_impl":
            return f"module {names[id(part)]!r}" if names[id(part)] else "its forward pass"
        frame = frame.f_back
    return "its forward pass"
