"""Code generation: an FX graph as a Python function that frees each tensor after its last use.

AOTAutograd calls the function with a list of arguments. The function empties the list, so that no
other reference keeps them alive. Each node becomes one line; an interpreter of the graph would take
some tens of microseconds per node.
"""

from __future__ import annotations

import operator
from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import fx
from torch.utils._pytree import tree_leaves

from graphc.errors import TorchError
from graphc.torch.budget.host.host_memory import HostMemory, open_host
from graphc.torch.private import run_and_save_rng_state, run_with_rng_state

Boxed = Callable[[list[Any]], tuple[Any, ...]]

Watch = Callable[[str], AbstractContextManager[object]]
"""Returns the context in which a watched node runs, given its name."""


def callable_of(target: Any) -> Callable[..., Any]:
    """Return the function that runs for a node of this target."""
    if target is torch.ops.aten.mkldnn_rnn_layer.default:
        return _recurrent_layer
    if target in (run_and_save_rng_state, run_with_rng_state):
        return drawing_on_its_device(target)
    if target in SCATTERS:
        return _without_the_storage(target)
    return getattr(target, "_op", target)  # type: ignore[no-any-return]


SCATTERS = {
    torch.ops.aten.copy.default: None,
    torch.ops.aten.diagonal_scatter.default: torch.ops.aten.diagonal.default,
    torch.ops.aten.select_scatter.default: torch.ops.aten.select.int,
    torch.ops.aten.slice_scatter.default: torch.ops.aten.slice.Tensor,
}
"""Ops that return a copy of a tensor with other contents in a view, and that view; None is all."""


def _without_the_storage(target: Any) -> Callable[..., Any]:
    """Return a variant of one of `SCATTERS` that copies a view only.

    Torch's ops copy the whole storage of a view, which may be much larger.
    """

    def scatter(whole: torch.Tensor, part: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        is_all = whole.untyped_storage().nbytes() == whole.numel() * whole.element_size()
        if is_all or 0 in whole.stride():
            return target(whole, part, *args, **kwargs)
        made = torch.empty_strided(
            whole.shape, whole.stride(), dtype=whole.dtype, device=whole.device
        )
        view = SCATTERS[target]
        if view is None:
            return made.copy_(part, *args, **kwargs)
        view(made.copy_(whole), *args, **kwargs).copy_(part)
        return made

    return scatter


def _recurrent_layer(*args: Any) -> Any:
    """Run oneDNN's recurrent layer, which has a workspace only if gradients are enabled."""
    training = args[-1]
    with torch.set_grad_enabled(training):
        detached = (each.detach() if isinstance(each, torch.Tensor) else each for each in args)
        return torch.ops.aten.mkldnn_rnn_layer.default(*detached)


def drawing_on_its_device(target: Callable[..., Any]) -> Callable[..., Any]:
    """Return a variant of a function that saves or restores a generator state.

    It uses the generator of its operands' GPU. Torch's functions use that of the current GPU.
    """

    def drawing(*args: Any, **kwargs: Any) -> Any:
        devices = (each.device for each in tree_leaves(args) if isinstance(each, torch.Tensor))
        gpus = [each for each in (*devices, kwargs.get("device")) if _is_gpu(each)]
        if not gpus:
            return target(*args, **kwargs)
        if torch.cuda.is_current_stream_capturing():
            raise TorchError(
                "the plan recomputes random numbers from a saved generator state, which a CUDA "
                "graph cannot capture; run the step without a CUDA graph, or raise the budget"
            )
        with torch.cuda.device(gpus[0]):
            return target(*args, **kwargs)

    return drawing


def _is_gpu(device: object) -> bool:
    return isinstance(device, torch.device) and device.type == "cuda"


def runner(
    module: fx.GraphModule, watch: Watch | None = None, host: HostMemory | None = None
) -> Boxed:
    """Compile a graph into a function that takes a list of arguments and empties it.

    `host` is the memory to which the graph copies tensors.
    """
    written = _Writer(module, watch, host)
    scope = written.constants
    exec(compile("\n".join(written.lines), "<graphc.torch>", "exec"), scope)
    run: Boxed = scope["run"]
    run._boxed_call = True  # type: ignore[attr-defined]
    return run


class _Writer:
    """A writer of the function's lines, and of the constants that they name."""

    def __init__(
        self, module: fx.GraphModule, watch: Watch | None, host: HostMemory | None
    ) -> None:
        self.module, self.is_watched, self.host = module, watch is not None, host
        self.constants: dict[str, Any] = {"watch": watch}
        self.names: dict[fx.Node, str] = {}
        self.dead: dict[fx.Node, list[fx.Node]] = defaultdict(list)
        seen: set[fx.Node] = set()
        for node in reversed(module.graph.nodes):
            for each in {node: None, **dict.fromkeys(node.all_input_nodes)}:
                if each not in seen and node.op not in ("placeholder", "output"):
                    self.dead[node].append(each)
                seen.add(each)
        given = [self.name(node) for node in module.graph.nodes if node.op == "placeholder"]
        self.lines = ["def run(args):"]
        if given:
            self.lines += [f"  {', '.join(given)}, = args", "  args.clear()"]
        for node in module.graph.nodes:
            self.write(node)

    def name(self, node: fx.Node) -> str:
        return self.names.setdefault(node, f"v{len(self.names)}")

    def constant(self, value: Any) -> str:
        name = f"c{len(self.constants)}"
        self.constants[name] = value
        return name

    def write(self, node: fx.Node) -> None:
        if node.op == "placeholder":
            return
        if node.op == "output":
            self.lines.append(f"  return {self.argument(tuple(node.args[0]))}")
            return
        if node.op == "get_attr":
            found = operator.attrgetter(str(node.target))(self.module)
            self.lines.append(f"  {self.name(node)} = {self.constant(found)}")
        elif node.target is operator.getitem:
            whole, index = node.args
            self.lines.append(f"  {self.name(node)} = {self.argument(whole)}[{index!r}]")
        else:
            given = [self.argument(each) for each in node.args]
            given += [f"{key}={self.argument(each)}" for key, each in node.kwargs.items()]
            function = callable_of(node.target)
            if node.target is open_host and self.host is not None:
                function = self.host.open
            called = self.constant(function)
            line = f"{self.name(node)} = {called}({', '.join(given)})"
            around = f"with watch({node.name!r}): " if self.is_watched else ""
            self.lines.append(f"  {around}{line}")
        if self.dead[node]:
            self.lines.append(f"  del {', '.join(map(self.name, self.dead[node]))}")

    def argument(self, given: Any) -> str:
        if isinstance(given, fx.Node):
            return self.name(given)
        if isinstance(given, tuple | list):
            parts = [self.argument(each) for each in given]
            return (
                f"({', '.join(parts)},)"
                if isinstance(given, tuple) and parts
                else f"[{', '.join(parts)}]"
            )
        if given is None or isinstance(given, bool | int | str):
            return repr(given)
        return self.constant(given)
