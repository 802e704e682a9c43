"""Errors for modules that cannot be planned, with the name, the rule and the fix."""

from __future__ import annotations

import inspect
import re
import traceback
from pathlib import Path
from typing import Any

import torch
from torch import fx, nn
from torch.utils._pytree import tree_leaves

from graphc.errors import OptionError, TorchError
from graphc.torch.budget.trace.branches import EXPECT
from graphc.torch.budget.trace.names import arguments_of, named, origin_of, origin_of_node
from graphc.torch.budget.trace.tracing import TRACING, is_refused_recompile, last_guard
from graphc.torch.private import (
    auto_functionalized,
    auto_functionalized_v2,
    dynamo_errors,
    is_wrapper_subclass,
    with_effects,
)

COLLECTIVES = ("_c10d_functional", "c10d", "_c10d_functional_autograd", "symm_mem")
"""Namespaces of collective ops, which wait for other processes."""

FUNCTIONALIZED = (auto_functionalized, auto_functionalized_v2)
"""Wrappers that run an op that writes into its operands on copies of them."""

CHECKS = (torch.ops.aten._linalg_check_errors.default, EXPECT)
"""Ops whose only effect is to raise an error that their operand reports."""

SYMBOLS = (torch.SymInt, torch.SymFloat, torch.SymBool)


def refuse_node(node: fx.Node) -> None:
    """Raise `TorchError` for a node of a joint graph that cannot be planned."""
    where = origin_of_node(node)
    if getattr(node.target, "namespace", "") in COLLECTIVES:
        raise TorchError(
            f"{node.target} communicates with other processes{where}, which a plan of one process "
            "does not support; move collectives out of the module, for example with "
            "DistributedDataParallel around it"
        )
    if isinstance(node.target, torch._ops.HigherOrderOperator):
        _refuse_higher_order(node, where)
    for leaf in tree_leaves(node.meta.get("val")):
        if any(isinstance(size, SYMBOLS) for size in _sizes(leaf)):
            cure = "use shapes that do not depend on data, and mark no dimension as dynamic"
            if node.target is torch.ops.aten.index.Tensor and any(
                each.meta["val"].dtype == torch.bool for each in node.all_input_nodes
            ):
                cure = "use torch.where instead of a boolean mask as an index"
            raise TorchError(
                f"{node.name} has a size that is unknown before the step ({leaf}){where}; a plan "
                f"needs static shapes, so {_cure(where, cure)}"
            )
        if isinstance(leaf, torch.Tensor) and leaf.layout != torch.strided:
            raise TorchError(
                f"{node.name} is {leaf.layout}{where}, but only strided tensors can be planned; "
                "move it out of the module"
            )


def called_op(node: fx.Node) -> Any:
    """Return the op that a node runs; if its target is a wrapper, the wrapped op."""
    if node.target in FUNCTIONALIZED:
        return node.args[0]
    return node.args[1] if node.target is with_effects else node.target


def _refuse_higher_order(node: fx.Node, where: str) -> None:
    called = called_op(node)
    if node.target in FUNCTIONALIZED or called in CHECKS:
        return
    if node.target is with_effects:
        raise TorchError(
            f"{called} is registered with side effects{where}, but a plan measures ops and may "
            "recompute them; call it outside the module, or remove the effect"
        )
    raise TorchError(
        f"{node.target} runs a nested graph{where}, which cannot be planned; rewrite that part "
        "without it, or move it out of the module"
    )


def _sizes(leaf: Any) -> tuple[Any, ...]:
    if isinstance(leaf, torch.Tensor):
        return (*leaf.shape, *leaf.stride()) if leaf.layout == torch.strided else ()
    return (leaf,)


SHARDED = ("FSDPModule", "FullyShardedDataParallel")
"""Classes of modules whose parameters FSDP gathers: by ``fully_shard``, and by FSDP1."""


def refuse_parts(module: nn.Module, planned: type[nn.Module]) -> None:
    """Raise an error for a scripted module, or one with a part that is planned or sharded."""
    if isinstance(module, torch.jit.ScriptModule):
        raise OptionError(
            f"module is a {type(module).__name__}, which torch.compile cannot trace; pass the "
            "original module"
        )
    for path, each in module.named_modules():
        where = f"{path!r} of the module" if path else "module"
        if isinstance(each, planned):
            raise OptionError(f"{where} is already planned; pass the original module")
        if any(kind.__name__ in SHARDED for kind in type(each).__mro__):
            raise TorchError(
                f"{where} is sharded by FSDP, which gathers its parameters in hooks outside of the "
                "traced graph, where a plan can neither count nor free them; plan the original "
                "module, then call torch.distributed.fsdp.fully_shard on the step"
            )


def refuse_tensors(step: nn.Module, given: tuple[Any, Any]) -> None:
    """Raise `TorchError` for a parameter, buffer or argument whose bytes cannot be counted.

    These are wrapper subclasses, tensors that are not strided, meta tensors, and tensors on a
    second GPU. `given` are positional and keyword arguments.
    """
    gpus: dict[torch.device, str] = {}
    for kind, own_name, tensor in named(step, given):
        name = own_name if kind == "input" else f"{kind} {own_name}"
        if is_wrapper_subclass(tensor):
            raise TorchError(
                f"{name} is a {type(tensor).__name__}, which wraps other tensors, but a plan "
                "supports only plain tensors; pass plain tensors"
            )
        if isinstance(tensor, torch.Tensor) and tensor.layout != torch.strided:
            raise TorchError(
                f"{name} is {tensor.layout}, but a plan supports only strided tensors; convert "
                "it, or remove it from the module and its arguments"
            )
        if getattr(getattr(tensor, "device", None), "type", "") == "meta":
            raise TorchError(
                f"{name} is on the meta device, where nothing can be measured; move it to the "
                "device of the steps, for example with module.to_empty(device=...)"
            )
        if isinstance(tensor, torch.Tensor) and tensor.is_cuda:
            gpus.setdefault(tensor.device, name)
    if len(gpus) > 1:
        devices = " and ".join(f"{name} on {device}" for device, name in gpus.items())
        raise TorchError(
            f"a plan supports one GPU, got {devices}; move the module and its arguments to one GPU"
        )


def as_graphc_error(
    error: Exception, module: nn.Module, loss_fn: Any, given: tuple[Any, Any], submodule: str
) -> OptionError | TorchError:
    """Convert an error of torch.compile in a submodule into an error for the user."""
    if isinstance(error.__context__, OptionError):  # raised by `losses` while torch traces it
        message = error.__context__.message.partition("\n\nfrom user code")[0]
        return OptionError(message)  # without the lines that torch appends
    if is_of_inductor(error):
        reason = str(innermost_of(error)).strip().partition("\n")[0]
        return TorchError(
            f"inductor cannot compile this step: {reason}; install what it needs, or plan without "
            "compile"
        )
    is_of_types = isinstance(innermost_of(error), TypeError | dynamo_errors.ObservedTypeError)
    is_of_types = is_of_types or _raised(error).startswith("TypeError")
    wrong = _wrong_arguments(module, loss_fn, *given) if is_of_types else None
    if wrong is None and "device" in str(error):
        wrong = _wrong_devices(module, given)
    return wrong or _untraceable(error, submodule)


def _wrong_arguments(
    module: nn.Module, loss_fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> OptionError | None:
    """Return an error about arguments that the module or the loss does not accept, or None."""
    own = args if loss_fn is None else args[:-1]
    fault = _unfit(module, own, kwargs)
    if fault:
        rule = "; with loss_fn, the last of args is the target, and the module gets the others"
        return OptionError(
            f"{type(module).__name__} cannot be called with the given arguments: "
            f"{fault}{rule if loss_fn is not None else ''}"
        )
    fault = _unfit(loss_fn, (None, None), {}) if loss_fn is not None else ""
    if fault:
        return OptionError(
            f"loss_fn must accept two arguments, the module's output and the target: {fault}"
        )
    return None


def _wrong_devices(module: nn.Module, given: tuple[Any, Any]) -> OptionError | None:
    """Return an error for an argument that is on none of the module's devices, or None."""
    there = {str(each.device) for each in (*module.parameters(), *module.buffers())}
    for name, each in arguments_of(given):
        if isinstance(each, torch.Tensor) and there and str(each.device) not in there:
            return OptionError(
                f"{name} is on {each.device}, but the module is on {', '.join(sorted(there))}; "
                "move them to one device"
            )
    return None


def _unfit(called: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """Return why a call does not accept arguments; empty if it does or has no signature."""
    is_module = isinstance(called, nn.Module)
    if is_module and called._forward_pre_hooks:
        return ""  # hooks may change the arguments
    try:
        signature = inspect.signature(called.forward if is_module else called)
    except (TypeError, ValueError):
        return ""
    try:
        signature.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return ""


def is_of_compiling(error: BaseException) -> bool:
    """Return whether an error comes from compiling, and not from running a compiled graph."""
    if isinstance(error, dynamo_errors.TorchDynamoException) or is_refused_recompile(error):
        return True
    files = (frame.f_code.co_filename for frame, _ in traceback.walk_tb(error.__traceback__))
    return any(Path(file).match("torch/_dynamo/convert_frame.py") for file in files)


def is_of_inductor(error: BaseException | None) -> bool:
    """Return whether an error was raised by inductor."""
    while error is not None and type(error).__name__ != "InductorError":
        error = getattr(error, "inner_exception", None) or error.__cause__
    return error is not None


def innermost_of(error: BaseException) -> BaseException:
    """Return the original error inside those that torch.compile wraps around it."""
    while (inner := getattr(error, "inner_exception", None) or error.__cause__) is not None:
        error = inner
    return error


def _untraceable(error: BaseException, submodule: str) -> TorchError:
    """Convert an error of tracing: the first line of torch's message, and where it happened.

    The whole message of torch becomes a note on the error.
    """
    if is_refused_recompile(error):
        return TorchError(
            "torch.compiler.set_stance('fail_on_recompile') is set, but this call has no plan; "
            "plan before setting that stance, and call the step once with each shape"
        )
    if isinstance(error, dynamo_errors.FailOnRecompileLimitHit):
        return TorchError(
            f"the step has been planned {TRACING['recompile_limit']} times, which is the limit; "
            f"this call needs another plan, because this guard failed: {last_guard()}. Use fewer "
            "shapes, and keep other values that the module reads constant"
        )
    where, innermost = origin_of(error, submodule), innermost_of(error)
    lines = str(innermost).strip().splitlines() or [type(innermost).__name__]
    if isinstance(innermost, dynamo_errors.TorchRuntimeError):
        text = f"an op of the module does not accept its operands{where}: {_said(lines)}"
    elif raised := _raised(error):
        text = f"the module raises an exception while torch.compile traces it{where}: {raised}"
    elif "backwards hooks" in lines[0]:
        text = (
            f"a module has a backward hook, which torch.compile cannot trace{where}; remove it, or "
            "register a hook on its parameters instead"
        )
    elif any(text in lines[0] for text in OF_DATA):
        text = (
            f"control flow depends on data{where}, and a plan cannot check the value there; "
            "compute with torch.where instead, or move that line out of the module"
        )
    else:
        cure = _cure(where, "move that line out of the module")
        text = f"torch.compile cannot trace the module as one graph{where}: {lines[0]}; {cure}"
    found = TorchError(text)
    found.add_note(f"torch says: {str(error).strip()}")
    return found


OF_LIBRARY = ", a line of the library "
"""The part of a location in code that a user cannot change, by `origin_of`."""

OPTIONS = {
    OF_LIBRARY + "peft": ", for DoRA use_dora=False",
    " in _mask_hidden_states": ", in the configuration apply_spec_augment=False",
}
"""Options that turn off a line of a library, by a part of its location."""


def _cure(where: str, cure: str) -> str:
    """Return what to do about a line; for one of a library, this is not `cure`."""
    if OF_LIBRARY not in where:
        return cure
    option = next((option for part, option in OPTIONS.items() if part in where), "")
    return (
        f"turn off the option of the library that runs that line{option}, or plan only the "
        "submodules that do not call it"
    )


OF_DATA = ("Data-dependent", "data-dependent", "Dynamic control flow")
"""Parts of torch's messages about control flow that depends on data."""


def _raised(error: BaseException) -> str:
    """Return the exception that the module raises during tracing, or an empty string.

    Dynamo of torch 2.9 names it only in its message, and that of 2.11 in the outer one.
    """
    found = re.findall(r"raised exception (.*)", f"{error}\n{innermost_of(error)}")
    plain = [re.sub(r"\[\w+\(\w+: (.*)\)\]", r"\1", each) for each in found]
    return min(plain, key=lambda each: "Variable" in each, default="")


def _said(lines: list[str]) -> str:
    """Extract an op's error from Dynamo's message, or return the first line."""
    explained = next((line for line in lines if "Explanation: " in line), lines[0])
    raised = re.search(r"got \w+\((['\"])(.*)\1\)", explained)
    return raised[2].rstrip(".") if raised else explained.partition("Explanation: ")[2] or lines[0]
